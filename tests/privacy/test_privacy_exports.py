import fedtranscribe.privacy


def test_public_names_exist_and_none_is_a_module() -> None:
    for name in fedtranscribe.privacy.__all__:
        value = getattr(fedtranscribe.privacy, name)
        assert type(value).__name__ != "module", name
    assert fedtranscribe.privacy.__all__ == sorted(set(fedtranscribe.privacy.__all__))
