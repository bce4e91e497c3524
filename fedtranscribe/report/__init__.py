"""A finished run as one HTML page that a privacy officer can read: no scripts, no outside requests.

facts       what a page says about a run, and what it must not say
spending    ε over answered rows, by holder and unit
verdict     the result in words
drawings    matplotlib figures as SVG, sample images as PNG, all of it inline
page        templates -> files, one run or several
"""

from fedtranscribe.report.page import check_libraries, write_comparison, write_report

__all__ = ["check_libraries", "write_comparison", "write_report"]
