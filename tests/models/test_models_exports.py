from fedtranscribe import models


def test_public_names_are_exactly_these():
    assert sorted(models.__all__) == [
        "Classifier",
        "Generator",
        "InputAdapter",
        "available",
        "build",
        "fixed_randomness",
        "is_small",
        "load_network",
        "load_state",
        "pick_device",
        "read_metadata",
        "restore",
        "save",
        "save_network",
        "xavier_",
    ]
    assert all(hasattr(models, name) for name in models.__all__)
