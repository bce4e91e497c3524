"""`fedtranscribe data pack`: what is done with data sets before any run."""

from pathlib import Path
from typing import Annotated, Any

import typer

from fedtranscribe.catalogue import expect_data
from fedtranscribe.cli.options import Json, group
from fedtranscribe.cli.output import emit
from fedtranscribe.cli.settings_options import GroupedCommand, settings_options
from fedtranscribe.config import OwnData, TranscribeSettings, build
from fedtranscribe.files import expect_free
from fedtranscribe.stage_bars import StageBars

data_app = group("Prepare data sets of your own.")

_PACK = """Write the pictures of an image folder as arrays that runs read a few at a time.

\b
Examples:
  fedtranscribe data pack pictures --out scans
  fedtranscribe data pack pictures --out scans --image-size 64 --ids patients.csv

Afterwards name the new folder: fedtranscribe transcribe --data scans. Records, ids and data id stay
those of the pictures, and so does the budget.
"""


@data_app.command("pack", help=_PACK, cls=GroupedCommand)
@settings_options(
    TranscribeSettings,
    only=(
        "classes",
        "ids",
        "id_pattern",
        "image_size",
        "bit_depth",
        "channels",
        "allow_skipped",
        "ledger",
    ),
)
def pack_command(
    typed: dict[str, Any],
    folder: Annotated[Path, typer.Argument(help="Image folder, one subfolder per class.")],
    out: Annotated[Path, typer.Option(help="Folder to write.")],
    as_json: Json = False,
) -> None:
    """Pack an image folder."""
    place = typed.pop("ledger", None)
    own = build(OwnData, typed)
    expect_data(str(folder))
    expect_free(out)

    from fedtranscribe.data.packing import pack

    with StageBars() as bars:
        ledger = pack(folder, out, own, bars, ledger=place, say=bars.say)
    emit({"folder": str(out), "ledger": str(ledger)}, as_json, "Packed")
