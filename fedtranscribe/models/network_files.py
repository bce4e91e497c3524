"""Networks as files that say what they are: classifiers, generators and mixtures."""

import json
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from fedtranscribe.models.classifier import Classifier
from fedtranscribe.models.fixed_features import MOST_PRODUCTS
from fedtranscribe.models.generator import Generator
from fedtranscribe.models.mixture import GaussianMixture, MixtureHeader, load_mixture, save_mixture
from fedtranscribe.models.registry import build, expect_classifier
from fedtranscribe.models.weights import (
    ENTRY,
    Header,
    _Channels,
    _Classes,
    _Side,
    _Width,
    expect_fit,
    load_state,
    read_header,
    restore,
    save,
)


class ClassifierHeader(Header):
    """Of `student.safetensors`."""

    kind: Literal["classifier"]
    architecture: Annotated[str, Field(max_length=200)]
    classes: _Classes
    channels: _Channels
    size: _Side
    multilabel: bool = False
    products: Annotated[int, Field(ge=0, le=MOST_PRODUCTS)] = 0


class GeneratorHeader(Header):
    """Of `generator.safetensors`."""

    kind: Literal["generator"]
    latent_dim: _Width
    width: _Width
    channels: _Channels
    size: _Side


_Header = ClassifierHeader | GeneratorHeader | MixtureHeader


_HEADER: TypeAdapter[_Header] = TypeAdapter(Annotated[_Header, Field(discriminator="kind")])


def save_network(network: Classifier | Generator | GaussianMixture, path: Path) -> None:
    """Write weights, and in the file's header what `load_network` needs to build the network."""
    if isinstance(network, GaussianMixture):
        save_mixture(network, path)
        return
    save(network, path, {ENTRY: json.dumps(_describe(network), sort_keys=True)})


def load_network(path: Path) -> Classifier | Generator | GaussianMixture:
    """The network, or mixture, in a file of `save_network`, on the CPU, in evaluation mode."""
    header = read_header(path, _HEADER)
    if isinstance(header, MixtureHeader):
        return load_mixture(path)
    state = load_state(path)
    if isinstance(header, GeneratorHeader):
        make = partial(Generator, header.latent_dim, header.channels, header.size, header.width)
        expect_fit(make, state, path)
        network = make()
    else:
        task = header.classes, header.channels, header.size
        expect_classifier(header.architecture, *task, state, path, header.products)
        network = build(header.architecture, *task, products=header.products)
        network.multilabel = header.multilabel
    restore(network, state, path)
    return network.eval()


def _describe(network: Classifier | Generator) -> dict[str, str | int]:
    facts: dict[str, str | int] = {"channels": network.channels, "size": network.size}
    if isinstance(network, Generator):
        facts |= {"kind": "generator", "latent_dim": network.latent_dim, "width": network.width}
    else:
        facts |= {
            "kind": "classifier",
            "architecture": network.architecture,
            "classes": network.classes,
        }
        facts |= {"multilabel": True} if network.multilabel else {}
        products = getattr(network.backbone, "products", 0)
        facts |= {"products": products} if products else {}
    return facts
