"""The overview as a Grafana dashboard. Owns look and placement; what is shown stands in panels.py."""

from __future__ import annotations

from grafana_foundation_sdk.builders import common, dashboard, prometheus, timeseries
from grafana_foundation_sdk.models.common import (
    GraphThresholdsStyleMode,
    LegendDisplayMode,
    LegendPlacement,
    SortOrder,
    StackingMode,
    TooltipDisplayMode,
)
from grafana_foundation_sdk.models.dashboard import (
    Dashboard,
    DashboardCursorSync,
    DataSourceRef,
    DynamicConfigValue,
    GridPos,
    VariableOption,
    VariableRefresh,
)
from panels import PANELS, Panel

COLUMNS = 2
WIDTH = 24 // COLUMNS
HEIGHT = 8
ALL = VariableOption(selected=True, text="All", value="$__all")
SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")


def overview() -> Dashboard:
    """The dashboard, two panels to a row in the order of the list."""
    board = (
        dashboard.Dashboard("Blockyard overview")
        .uid("blockyard-overview")
        .tags(["blockyard"])
        .description("What the cluster's host pools and disks gave back, what moved, what was removed and what failed.")
        .refresh("10s")
        .time("now-30m", "now")
        .timezone("browser")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .readonly()
        .with_variable(dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
        .with_variable(_choice("cluster", '{__name__=~"blockyard_(worker|leader)_uptime_seconds"}'))
        .with_variable(_choice("worker", 'blockyard_worker_uptime_seconds{cluster=~"$cluster"}'))
    )
    for place, panel in enumerate(PANELS):
        board.with_panel(_panel(panel, place))
    return board.build()


def _choice(label: str, series: str) -> dashboard.QueryVariable:
    return (
        dashboard.QueryVariable(label)
        .label(label.capitalize())
        .query(f"label_values({series}, {label})")
        .datasource(SOURCE)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .include_all(True)
        .all_value(".+")
        .multi(True)
        .current(ALL)
    )


def _panel(panel: Panel, place: int) -> timeseries.Panel:
    built = (
        timeseries.Panel()
        .id(place + 1)
        .title(panel.title)
        .description(panel.description)
        .datasource(SOURCE)
        .unit(panel.unit)
        .min(0)
        .line_width(1)
        .fill_opacity(20 if panel.stacked else 5)
        .stacking(common.StackingConfig().mode(StackingMode.NORMAL if panel.stacked else StackingMode.NONE))
        .thresholds_style(common.GraphThresholdsStyleConfig().mode(GraphThresholdsStyleMode.OFF))
        .tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING))
        .legend(_legend())
        .grid_pos(GridPos(x=place % COLUMNS * WIDTH, y=place // COLUMNS * HEIGHT, w=WIDTH, h=HEIGHT))
    )
    for number, query in enumerate(panel.queries):
        built.with_target(
            prometheus.Dataquery()
            .ref_id(chr(ord("A") + number))
            .datasource(SOURCE)
            .expr(query.expr)
            .legend_format(query.legend)
            .range()
        )
    if panel.apart:
        built.override_by_name(panel.apart, _apart())
    if panel.right:
        built.override_by_regexp(panel.right, [DynamicConfigValue("custom.axisPlacement", "right")])
    return built


def _legend() -> common.VizLegendOptions:
    return (
        common.VizLegendOptions()
        .display_mode(LegendDisplayMode.TABLE)
        .placement(LegendPlacement.RIGHT)
        .show_legend(True)
        .calcs(["lastNotNull", "max"])
    )


def _apart() -> list[DynamicConfigValue]:
    return [
        DynamicConfigValue("custom.stacking", {"mode": "none"}),
        DynamicConfigValue("custom.fillOpacity", 0),
    ]
