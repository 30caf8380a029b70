"""The report of a study: one page of HTML in one file, with plots that show a design where one points at it."""
