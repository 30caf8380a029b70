"""Space files: what they say, and mistakes, each with its place, all told at once."""

from __future__ import annotations

from pathlib import Path

import pytest

import tensornet_attn as ta
from tensornet_attn.search import check, load

SLIPS = """space: 2
name: two words
base: [mhsa, mhsaa, mhsa]
legs:
  q: [2, 4]
  h: {rnge: [2, 4]}
  f: {range: [0.5, 2]}
settings:
  k: 3
alternatives:
  B: {plain: {step: "x[m f] Wk[f h d] -> m h d"}}
  K:
    shared: {weights: {Wk: f d}, step: "x[m f] Wk[f g] -> m g"}
    empty: {weights: {Wk: f d}}
    strange: {stpe: K}
moves:
  shrae:
  share: {h: 2, g: [0]}
  experts: {of: [vx]}
  core: 3
most: -1
bounds: {mac: 5, macs: big, parameters: {least: 5, most: 2}, n: 0}
bouns: 3
"""


WANTED = """s:1:8: version: a space must begin with its version, 'space: 1'.
    space: 2
           ^
  hint: write 'space: 1'.
s:2:7: name: 'two words' is not a valid name.
    name: two words
          ^^^^^^^^^
  hint: start with a letter, then use letters, digits and _ (ASCII).
s:3:14: unknown-design: this design is invalid: there is no shipped design 'mhsaa'.
    base: [mhsa, mhsaa, mhsa]
                 ^^^^^
  hint: did you mean 'mhsa'? A path contains '/' or ends in '.yaml'.
s:3:21: name-taken: two bases have the name 'mhsa'.
    base: [mhsa, mhsaa, mhsa]
                        ^^^^
  hint: rename one of them.
s:5:3: unknown-name: no base has a leg 'q'.
      q: [2, 4]
      ^
  hint: known here: d, f, h.
s:6:6: wrong-value: expected one of choices, range, log, divisors, got rnge.
      h: {rnge: [2, 4]}
         ^
  hint: e.g. {choices: [2, 4, 8]} or {range: [1, 8]}.
s:7:6: bad-size: sizes of legs must be whole numbers from 1.
      f: {range: [0.5, 2]}
         ^
  hint: e.g. [4, 8].
s:9:3: unknown-name: no base has a setting 'k'.
      k: 3
      ^
  hint: none is declared.
s:11:3: unknown-name: no base has a step 'B'.
      B: {plain: {step: "x[m f] Wk[f h d] -> m h d"}}
      ^
  hint: known here: A, K, Q, V, y.
s:13:53: unknown-leg: there is no leg 'g'.
        shared: {weights: {Wk: f d}, step: "x[m f] Wk[f g] -> m g"}
                                                        ^
  hint: known here: d, f, h, m, n.
s:14:12: missing-key: an alternative needs a 'step', the replacement.
        empty: {weights: {Wk: f d}}
               ^
  hint: e.g. 'step: x[m f] Wk[f d] -> m d'.
s:15:15: unknown-name: an alternative has no key 'stpe'.
        strange: {stpe: K}
                  ^^^^
  hint: did you mean 'step'?
s:17:3: unknown-name: there is no move 'shrae'.
      shrae:
      ^^^^^
  hint: did you mean 'share'?
s:18:11: unknown-name: the move 'share' has no option 'h'.
      share: {h: 2, g: [0]}
              ^
  hint: known here: g.
s:18:20: wrong-value: 'g' of 'share' cannot be 0.
      share: {h: 2, g: [0]}
                       ^
  hint: e.g. 1, 2, 4, 8.
s:19:17: wrong-value: 'of' of 'experts' cannot be vx.
      experts: {of: [vx]}
                    ^
  hint: e.g. v, o, vo, vk, vko, q, k, qo, ko.
s:20:9: wrong-type: the options of a move must be a mapping.
      core: 3
            ^
  hint: e.g. {form: [...]}.
s:21:7: number: 'most' must be a whole number from 0.
    most: -1
          ^^
  hint: e.g. 'most: 2'.
s:22:10: unknown-name: there is no cost 'mac'.
    bounds: {mac: 5, macs: big, parameters: {least: 5, most: 2}, n: 0}
             ^^^
  hint: did you mean 'macs'?
s:22:24: number: a bound must be a number, or a mapping with 'least' and 'most'.
    bounds: {mac: 5, macs: big, parameters: {least: 5, most: 2}, n: 0}
                           ^^^
  hint: e.g. 1000000, or {least: 1000, most: 1000000}.
s:22:41: number: a bound must be a number, or a mapping with 'least' and 'most'.
    bounds: {mac: 5, macs: big, parameters: {least: 5, most: 2}, n: 0}
                                            ^
  hint: e.g. 1000000, or {least: 1000, most: 1000000}.
s:22:65: number: 'n' must be a whole number from 1.
    bounds: {mac: 5, macs: big, parameters: {least: 5, most: 2}, n: 0}
                                                                    ^
  hint: e.g. 'n: 2'.
s:23:1: unknown-key: there is no key 'bouns' here.
    bouns: 3
    ^^^^^
  hint: did you mean 'bounds'?
"""


def test_all_mistakes_at_once() -> None:
    lines = [str(problem).replace("<text>", "s") for problem in check(SLIPS)]
    assert "".join(f"{line}\n" for line in lines) == WANTED


def test_a_design_inside_a_space_has_its_own_places() -> None:
    text = "space: 1\nbase:\n  - tensornet: 1\n    name: inner\n    extends: mhsa\n    weights: {Wk: f dd}\n"
    (problem,) = check(text)
    assert str(problem) == (
        "<text>:6:21: unknown-leg: there is no leg 'dd'.\n"
        "        weights: {Wk: f dd}\n"
        "                        ^^\n"
        "  hint: did you mean 'd'?"
    )


def test_a_path_is_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("tensornet: 1\nname: mine\nextends: gqa\nlegs: {f: 32}\n")
    (tmp_path / "space.yaml").write_text("space: 1\nbase: ./mine.yaml\nlegs: {g: [1, 2]}\n")
    space = load(tmp_path / "space.yaml")
    assert list(space.bases) == ["mine"]
    assert space.bases["mine"]["legs"]["f"] == 32


def test_no_base_and_no_file() -> None:
    assert [problem.message for problem in check({"space": 1})] == ["a space needs at least one base design."]
    with pytest.raises(ta.DesignError, match="there is no shipped design 'nowhere'"):
        load("nowhere")


def test_an_alternative_counts_where_it_is_valid() -> None:
    step = "x[m f] Wk[f h d] -> m h d"
    space = load({"space": 1, "base": ["mhsa", "gqa"], "alternatives": {"K": {"same": {"step": step}}}})
    assert space.alternatives["K"]["same"].bases == ("mhsa",)


def test_what_is_left_out_has_a_default() -> None:
    space = load({"space": 1, "base": "mhsa", "moves": ["group", "kernel", "mix"]})
    assert (space.name, space.most, space.bounds.n, space.bounds.batch, space.bounds.limits) == ("space", 2, 64, 1, ())
    assert space.moves["group"]["g"].items == (1, 2, 4)
    assert list(load({"space": 1, "base": "mhsa", "moves": "all"}).moves)[:3] == ["share", "group", "core"]


def test_a_space_has_a_hash_of_what_it_says() -> None:
    space = {"space": 1, "base": "mhsa", "legs": {"h": [4, 8]}}
    assert load(space).hash == load({**space, "name": "other", "about": "Words."}).hash
    assert load(space).hash != load({**space, "legs": {"h": [4, 16]}}).hash
