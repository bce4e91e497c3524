"""Which data sets share records, and what may therefore not be called public.

Public images cost nothing: no ledger books them. If they are the private records, every ε that is
printed afterwards is false. So each entry for public images (`load_public`) compares them with
the private ones first, and a cost that travels with an artefact is added wherever its data share
records with the data at hand.
"""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from fedtranscribe.config import UNSTATED, OwnData
from fedtranscribe.data.imageset import DataSplit, DrawnFrom, ImageSet
from fedtranscribe.data.partitions import whole_id
from fedtranscribe.data.registry import is_benchmark, is_of_files, load
from fedtranscribe.errors import ConfigError

# Data ids of sets that hold images of the same origin.
_FAMILIES = (
    # 5,000 images of MNIST, and all of them.
    frozenset({"digits", "mnist"}),
    # CIFAR-10, and the same images through JPEG.
    frozenset({"cifar10", "cifar10-jpeg"}),
    # The same CT scans, sliced along three axes.
    frozenset({"medmnist:organamnist", "medmnist:organcmnist", "medmnist:organsmnist"}),
)
# MedMNIST has the images of a set at several sizes, a file each.
_MEDMNIST_SIZE = re.compile(r"(medmnist:.+)_(?:64|128|224)")
_OTHER_IMAGES = "if they are other images, rename the folder or file, or set its key data_id"
_ANOTHER_SET = "choose another set, 'shapes' or 'none'."


@dataclass(frozen=True, eq=False)
class NamedData:
    """A data set as it was named."""

    spec: str  # the name or path, as it was typed
    data_id: str  # the set's id
    # Its images, where they may be compared with others: on the machine of the private data's
    # holder only. None compares ids and paths alone.
    split: DataSplit | None = None

    @classmethod
    def of(cls, spec: str, split: DataSplit) -> "NamedData":
        """A set that was loaded under `spec`, with its images."""
        return cls(spec, split.train.data_id, split)


def share_records(one: str, other: str) -> bool:
    """Whether the data sets of two ids share records, as far as ids tell.

    They do if the ids are equal, if one is a holder's part of the other in a simulation, or if
    the table of sets that contain each other names both: `digits` and `mnist`, `cifar10` and
    `cifar10-jpeg`, the three views of MedMNIST's CT scans, one MedMNIST set at several sizes.
    """
    pair = {_known_as(one), _known_as(other)}
    return len(pair) == 1 or any(pair <= family for family in _FAMILIES)


def expect_public(
    setting: str, public: NamedData, private: NamedData, fix: str = _ANOTHER_SET
) -> None:
    """Refuse public images that are the private records.

    Guarantee:
        Nothing is refused because of a single record, and nothing passes if

        - the ids of the two sets share records (`share_records`);
        - the two names lead to the same file or folder, or one folder lies in the other, however
          they are spelled (links, `./x`, relative and absolute paths);
        - all public images, or their training part, are exactly the private ones, or their
          training part, or their held-out part. Order, labels, ids, and file name do not matter:
          what is compared is how often each image occurs, by the sum of digests;
        - they are an archive of samples whose generator was trained on data that share records
          with the private ones, or on data that the archive does not name. That training has
          cost something, which `--generator` adds and a public set does not.

        Images are compared only where both splits are given. A holder's node gives none: it
        compares ids alone. Otherwise a server could find out by its refusal whether a set of
        images is the holder's.

        Not caught: sets that overlap in part. One image more, less, or changed by one grey level
        makes another set; so do another size, colour or compression. Samples as a folder of
        pictures: it has nowhere to say what they were drawn from. To look for single images
        would catch more of them, and would answer for any image whether it is a record.

    Args:
        setting: that named the public set, for the message.
        public: the set that is called public.
        private: the records.
        fix: what the user can do.
    """
    found = _objection(public, private)
    if found is not None:
        raise ConfigError(
            f"Expected {setting}={public.spec!r} to name public images, but {found} the private "
            f"data={private.spec!r}; {fix}"
        )


def load_public(
    setting: str,
    spec: str,
    private: NamedData | None,
    root: Path | None = None,
    download: bool = False,
    own: OwnData = UNSTATED,
) -> ImageSet:
    """The training part of a public set, once it is known not to be the private one.

    Args:
        setting: that named the set, for messages.
        spec: as for `load`; so are `root`, `download` and `own`.
        private: the records; None only at a server, which knows no records to compare with.
    """
    if not is_of_files(spec):
        own = own.model_copy(update={"channels": None})  # said of the private image files
    split = load(spec, root, download, own)
    if private is not None:
        expect_public(setting, NamedData.of(spec, split), private)
    return split.train


def _known_as(data_id: str) -> str:
    """The id without what says that it is a part or a size of a set."""
    whole = whole_id(data_id)
    sized = _MEDMNIST_SIZE.fullmatch(whole)
    return whole if sized is None else sized[1]


def _objection(public: NamedData, private: NamedData) -> str | None:
    """Why the one cannot be public beside the other, up to its name; None if it can."""
    if _same_place(public.spec, private.spec):
        return "it is the file or folder of"
    if public.data_id == private.data_id:
        own = "" if is_benchmark(public.spec) else f" ({_OTHER_IMAGES})"
        return f"its data_id {public.data_id!r}{own} is that of"
    if share_records(public.data_id, private.data_id):
        return f"{public.data_id!r} shares records with {private.data_id!r},"
    if public.split is None:
        return None
    drawn = public.split.train.drawn_from
    if drawn is not None and (
        drawn.data_id is None or share_records(drawn.data_id, private.data_id)
    ):
        return _drawn(drawn)
    if private.split is None:
        return None
    return "its images are exactly those of" if _same_images(public.split, private.split) else None


def _drawn(drawn: DrawnFrom) -> str:
    records = "records that nobody names" if drawn.data_id is None else repr(drawn.data_id[:200])
    return (
        f"they are samples of the run {drawn.run[:80]!r}, whose generator learned from {records} "
        f"at a cost (to count it, name the run: fedtranscribe transcribe --generator), beside"
    )


def _same_place(one: str, other: str) -> bool:
    """Whether two names lead to one file or folder, or one folder lies in the other."""
    return any(_overlap(first, second) for first in _places(one) for second in _places(other))


def _places(spec: str) -> list[Path]:
    """What a name leads to on this machine; a simulation's may be several, by commas."""
    names = {spec, *(part.strip() for part in spec.split(","))}
    paths = (Path(name).expanduser() for name in names if name and not is_benchmark(name))
    return [path.resolve() for path in paths if path.exists()]


def _overlap(one: Path, other: Path) -> bool:
    if one.is_dir() and other.is_dir():
        return one.is_relative_to(other) or other.is_relative_to(one)
    return one.samefile(other)  # a hard link is the same file, too


def _same_images(public: DataSplit, private: DataSplit) -> bool:
    if public.train.pixels.shape[1:] != private.train.pixels.shape[1:]:
        return False
    # An archive without ids splits by position, so a permuted copy has another training part:
    # the whole is compared as well. The held-out part of a public set is never used.
    sizes = [len(part) for part in (public.train, public.test, private.train, private.test)]
    counts, train, test = {sizes[0], sum(sizes[:2])}, sizes[2], sizes[3]
    if counts.isdisjoint((train, test, train + test)):
        return False
    used, rest = _counted(public.train), _counted(public.test)
    own, held = _counted(private.train), _counted(private.test)
    return any(seen in (own, held, own + held) for seen in (used, used + rest))


@dataclass(frozen=True)
class _Counted:
    """How many images there are, and the sum of their digests: equal for equal collections.

    Two collections that somebody makes up could have one sum; of others none ever will.
    """

    images: int
    digests: int

    def __add__(self, other: "_Counted") -> "_Counted":
        return _Counted(self.images + other.images, (self.digests + other.digests) % 2**512)


def _counted(part: ImageSet) -> _Counted:
    """In any order, and a few images at a time."""
    images = (image for block in part.blocks() for image in block.numpy())
    digests = (hashlib.blake2b(image.tobytes()).digest() for image in images)
    return _Counted(len(part), sum(int.from_bytes(digest) for digest in digests) % 2**512)
