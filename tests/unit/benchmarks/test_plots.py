"""A plot is well-formed SVG that shows every value where it belongs."""

from typing import Literal
from xml.etree import ElementTree

import msgspec
import pytest

from benchmarks.plots import BOTTOM, HEIGHT, STYLE, Plot, svg

SVG = "{http://www.w3.org/2000/svg}"


def plot(kind: Literal["bars", "lines"] = "bars") -> Plot:
    return Plot(
        name="p",
        title="a < b & c",
        kind=kind,
        x_label="runs at once",
        y_label="commits per second",
        places=("1", "64"),
        series={"store": (50.0, 1234.5), "bare": (100.0, 2000.0)},
    )


def drawn(plot: Plot) -> ElementTree.Element:
    return ElementTree.fromstring(svg(plot))


def texts(root: ElementTree.Element) -> list[str | None]:
    return [element.text for element in root.iter(f"{SVG}text")]


@pytest.mark.parametrize("kind", ["bars", "lines"])
def test_it_names_its_axes_its_series_its_places_and_its_values(kind: Literal["bars", "lines"]) -> None:
    shown = texts(drawn(plot(kind)))
    for text in ("a < b & c", "runs at once", "commits per second", "store", "bare", "64", "1,234", "2,000"):
        assert text in shown


def test_bars_are_as_high_as_their_values() -> None:
    root = drawn(plot())
    bars = [float(bar.attrib["height"]) for bar in root.iter(f"{SVG}rect") if bar.get("class") == "s1"][:2]
    assert bars[1] == pytest.approx(20 * bars[0], rel=0.02)


def test_bars_stand_on_the_axis() -> None:
    for bar in drawn(plot()).iter(f"{SVG}rect"):
        if "rx" not in bar.attrib:
            assert float(bar.attrib["y"]) + float(bar.attrib["height"]) == pytest.approx(HEIGHT - BOTTOM)


def test_a_line_has_a_point_for_each_place() -> None:
    lines = [line.attrib["points"].split() for line in drawn(plot("lines")).iter(f"{SVG}polyline")]
    assert [len(line) for line in lines] == [2, 2]


def test_a_mark_above_all_values_still_is_on_the_paper() -> None:
    root = drawn(msgspec.structs.replace(plot(), mark=("to reach", 9000.0)))
    assert "to reach" in texts(root)
    (mark,) = (path.attrib["d"] for path in root.iter(f"{SVG}path") if path.get("class") == "mark")
    assert 0 < float(mark.split("H")[0].split()[1]) < HEIGHT


def test_nothing_measured_is_drawn_as_nothing() -> None:
    assert "0" in texts(drawn(msgspec.structs.replace(plot(), series={"store": (0.0, 0.0)})))


def test_the_paper_follows_the_colour_scheme() -> None:
    light, dark = STYLE.split("@media (prefers-color-scheme: dark)")
    for name in ("text", ".paper", ".grid", ".mark", ".s0", ".s1", ".s2", ".s3"):
        assert f"{name} {{" in light
        assert f"{name} {{" in dark


def test_more_series_than_colours_are_refused() -> None:
    crowded = msgspec.structs.replace(plot(), series={str(n): (1.0, 2.0) for n in range(5)})
    with pytest.raises(ValueError, match="told apart"):
        svg(crowded)
