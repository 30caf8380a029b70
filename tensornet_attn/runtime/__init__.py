"""The few functions that emitted code stands on; emitted files carry them verbatim, so each needs only torch."""
