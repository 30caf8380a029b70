"""Rows, their order and their places, on small levels."""

from itertools import pairwise

import pytest

from tensornet_attn.draw.levels import GAP, Level, LevelOrder, level_of, spread
from tensornet_attn.draw.looks import ROOM, text_width
from tensornet_attn.draw.scene import Edge


def level(*pairs: str, last: str = "", room: float = 999.0, label: str = "") -> Level:
    """A level of things of one letter each, 20 points wide, joined as in `ab`."""
    found = [(Edge(pair[0], pair[1], label, wire=index), pair[0], pair[1]) for index, pair in enumerate(pairs)]
    things = dict.fromkeys(dict.fromkeys("".join(pairs)), 20.0)
    return level_of({t: w for t, w in things.items() if t not in last}, list(last), found, room)


def test_rows_go_from_above_to_below() -> None:
    assert level("ab", "bc").rows == (("a",), ("b",), ("c",))


def test_what_nothing_comes_into_stands_right_above_what_it_joins() -> None:
    assert level("ab", "bc", "dc").rows == (("a",), ("b", "d"), ("c",))


def test_the_last_row_is_below_all() -> None:
    assert level("ay", "ab", "bc", last="y").rows == (("a",), ("b", "c0"), ("c", "c1"), ("y",))


def test_a_label_stands_between_the_ends() -> None:
    found = level("ab", label="n")
    assert found.rows == (("a",), ("lab0",), ("b",))
    assert found.labels["lab0"].label == "n"


def test_a_long_edge_passes_rows_at_corners() -> None:
    found = level("ab", "bc", "ac")
    assert found.rows == (("a",), ("b", "c0"), ("c",))
    assert [(arrow.tail, arrow.head) for arrow in found.chains[2]] == [("a", "c0"), ("c0", "c")]


def test_without_room_rows_hold_less() -> None:
    found = level("ad", "bd", "cd", room=45.0)
    assert [sorted(row) for row in found.rows] == [["a", "b"], ["c", "c0", "c1"], ["d"]]
    assert found.lines == {"a": 0, "b": 0, "c": 1}


def test_what_is_joined_to_nothing_stands_where_room_is() -> None:
    found = level_of(
        {"a": 20.0, "b": 20.0, "c": 20.0, "z": 20.0},
        ["y"],
        [(Edge("a", "c"), "a", "c"), (Edge("b", "c"), "b", "c")],
        999.0,
    )
    assert found.rows == (("a", "b"), ("c", "z"), ("y",))


def test_order_has_few_crossings() -> None:
    found = level("ad", "bc")
    rows = LevelOrder([["a", "b"], ["c", "d"]], found.arrows, {}, dict.fromkeys("abcd", 0), False).best()
    assert rows in ([["a", "b"], ["d", "c"]], [["b", "a"], ["c", "d"]])


def test_order_keeps_to_the_sides() -> None:
    found = level("ad", "bc")
    rows = LevelOrder([["a", "b"], ["c", "d"]], found.arrows, {}, {"a": -1, "b": 1, "c": 0, "d": 0}, False).best()
    assert rows == [["a", "b"], ["d", "c"]]
    assert LevelOrder([["a", "b"], ["c", "d"]], found.arrows, {}, {"a": -1, "b": 1, "c": 0, "d": 0}, True).best() == [
        ["a", "b"],
        ["c", "d"],
    ]


def test_wires_are_straight_where_they_can_be() -> None:
    found = level("ad", "bc", "be")
    rows = [["a", "b"], ["d", "c", "e"]]
    x = spread(rows, found, dict.fromkeys("abcde", 20.0), {})
    assert abs(x["a"] - x["d"]) < 0.5
    assert abs(2 * x["b"] - x["c"] - x["e"]) < 0.5
    for row in rows:
        assert all(x[two] - x[one] >= 20 + GAP - 1e-6 for one, two in pairwise(row))
    assert min(x.values()) == 10.0


def test_texts_have_the_widths_of_their_letters() -> None:
    assert text_width("iW m", 1000) == pytest.approx((222 + 944 + 278 + 833) * ROOM)
    assert text_width("\N{MINUS SIGN}0.5", 10) == text_width("+0.5", 10)
    assert text_width("\u4e2d", 10) > text_width("n", 10)
