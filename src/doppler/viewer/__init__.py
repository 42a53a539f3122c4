"""What people look at: graphs, timelines and summaries, each complete in itself."""

from doppler.viewer.chrome import from_chrome, load_chrome, to_chrome
from doppler.viewer.graph_page import render_graph
from doppler.viewer.labels import Labels, OpLabels
from doppler.viewer.summary import summarize_graph, summarize_trace
from doppler.viewer.timeline import render_timeline
from doppler.viewer.timeline_svg import timeline_svg

__all__ = [
    "Labels",
    "OpLabels",
    "from_chrome",
    "load_chrome",
    "render_graph",
    "render_timeline",
    "summarize_graph",
    "summarize_trace",
    "timeline_svg",
    "to_chrome",
]
