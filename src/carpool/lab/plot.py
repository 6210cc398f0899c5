"""The lab's charts as one figure: a row for each experiment."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from carpool.errors import CarpoolError
from carpool.lab.batching_lab import LabReport
from carpool.lab.findings import Chart

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = (("#0072B2", "#8CC5E8"), ("#B34700", "#F2B083"), ("#00735A", "#8FD3BF"))
"""Dark and light of each row; apart for the colour-blind, after Okabe and Ito's palette."""
BAR_HEIGHT = 0.8
FORMATS = ("png", "svg")


class PlotError(CarpoolError):
    """The figure cannot be drawn or written."""


def import_matplotlib() -> Any:
    """matplotlib, with the one backend that needs no screen. Raises PlotError without it."""
    try:
        import matplotlib
    except ImportError as error:
        raise PlotError(
            "drawing the figure needs matplotlib; install it: pip install 'carpool[lab]'"
        ) from error
    matplotlib.use("Agg")
    return matplotlib


def check_folder(folder: Path) -> None:
    """Make `folder` if it is not there. Raises PlotError unless files can be written to it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise _cannot_write(folder, error) from error


def save_plot(report: LabReport, folder: Path) -> list[Path]:
    """Write lab-batching.png and .svg into `folder`. Raises PlotError."""
    matplotlib = import_matplotlib()
    # The same figures give the same file: no random ids, no date.
    style = {"font.size": 10, "svg.hashsalt": "carpool", "svg.fonttype": "none"}
    paths = [folder / f"lab-batching.{suffix}" for suffix in FORMATS]
    with matplotlib.rc_context(style):
        figure = _draw(report)
        for path in paths:
            try:
                figure.savefig(
                    path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None
                )
            except OSError as error:
                raise _cannot_write(folder, error) from error
    return paths


def _cannot_write(folder: Path, error: OSError) -> PlotError:
    return PlotError(
        f"--out {folder}: cannot write there ({error.strerror or error}); give another folder"
    )


def _draw(report: LabReport) -> Any:
    from matplotlib.figure import Figure

    num_rows = len(report.findings)
    figure = Figure(figsize=(14, 3.1 * num_rows + 0.9), layout="constrained")
    figure.suptitle(f"{report.model} shared by many\n", fontsize=15, fontweight="bold")
    rows = figure.add_gridspec(num_rows, 1, hspace=0.05)
    figure.text(0.5, 0.968, report.machine, ha="center", va="top", color="0.35")
    for number, found in enumerate(report.findings):
        row = figure.add_subfigure(rows[number])
        colours = COLOURS[number % len(COLOURS)]
        row.suptitle(found.table.title, fontsize=11, fontweight="bold", x=0.01, ha="left")
        axes = row.subplots(1, len(found.charts), sharey=True)
        for place, chart in zip(axes, found.charts, strict=True):
            _draw_chart(place, chart, colours)
    return figure


def _draw_chart(axes: "Axes", chart: Chart, colours: tuple[str, str]) -> None:
    """Horizontal bars, first label on top, the value at the end of each."""
    from matplotlib.ticker import MaxNLocator

    height = BAR_HEIGHT / len(chart.series)
    dark, light = colours
    shades = (dark,) if len(chart.series) == 1 else (light, dark)
    for number, ((name, values), shade) in enumerate(
        zip(chart.series.items(), shades, strict=True)
    ):
        offset = (number - (len(chart.series) - 1) / 2) * height
        places = [place + offset for place in range(len(values))]
        bars = axes.barh(places, values, 0.9 * height, color=shade, label=name)
        axes.bar_label(bars, [chart.number_format.format(value) for value in values], padding=3)
    axes.set_yticks(range(len(chart.labels)), chart.labels)
    axes.set_title(chart.title, fontsize=10)
    axes.set_xlabel(chart.unit)
    longest = chart.limit or max(max(values) for values in chart.series.values())
    axes.set_xlim(0, 1.2 * longest)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=2))
    axes.set_ylim(len(chart.labels) - 0.5, -0.5)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    if len(chart.series) > 1:
        axes.legend(frameon=False, loc="best", fontsize=9)
