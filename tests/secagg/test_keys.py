from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from fedtranscribe.errors import ConfigError, ProtocolError
from fedtranscribe.noise.mask_keys import Advert, Cohort, RunKey, sign, statement
from tests.secagg.cohorts import cohort_of, names, node_key, run_keys


def adverts_of(keys: dict[str, RunKey]) -> list[Advert]:
    return [key.advert for key in keys.values()]


def test_all_pairs_of_a_run_share_a_secret_that_no_other_pair_has():
    keys = run_keys(cohort_of(4, 1))
    books = {name: key.agree(adverts_of(keys)) for name, key in keys.items()}
    pairs = {(a, b): books[a].shared_with(b) for a in books for b in books if a != b}
    assert all(pairs[a, b] == pairs[b, a] for a, b in pairs)
    assert len(set(pairs.values())) == 6


def test_a_replaced_key_is_noticed():
    keys = run_keys(cohort_of(3, 0))
    adverts = adverts_of(keys)
    # The server puts its own key, or another holder's, behind a holder's signature.
    for other in (RunKey.make(cohort_of(3, 0), "clinic-2", node_key(2)).advert.key, bytes(32)):
        forged = [*adverts[:2], replace(adverts[2], key=other)]
        with pytest.raises(ProtocolError, match="clinic-2"):
            keys["clinic-0"].agree(forged)
    renamed = [adverts[0], replace(adverts[1], name="clinic-2"), adverts[2]]
    with pytest.raises(ProtocolError, match="replaced, replayed"):
        keys["clinic-0"].agree(renamed)


def test_a_key_of_another_run_or_cohort_is_noticed():
    keys = run_keys(cohort_of(4, 1))
    for earlier in (
        cohort_of(4, 1, run="run-0"),
        cohort_of(4, 0),
        cohort_of(4, 1, 1),
        cohort_of(5, 1),
    ):
        replayed = RunKey.make(earlier, "clinic-2", node_key(2)).advert
        mixed = [a for a in adverts_of(keys) if a.name != "clinic-2"] + [replayed]
        with pytest.raises(ProtocolError, match="clinic-2"):
            keys["clinic-0"].agree(mixed)


def test_a_foreign_holder_is_noticed_whoever_signed_for_it():
    keys = run_keys(cohort_of(3, 0))
    cohort = keys["clinic-0"].cohort
    stranger = ec.generate_private_key(ec.SECP384R1())
    larger = Cohort("run-1", {**cohort.roster, "clinic-9": stranger.public_key()}, 0)
    foreign = RunKey.make(larger, "clinic-9", stranger).advert
    with pytest.raises(ProtocolError, match="clinic-9"):
        keys["clinic-0"].agree([*adverts_of(keys), foreign])
    # A stranger that takes a name of the roster signs with another key.
    said = statement("run key", cohort.digest, b"clinic-1", bytes(range(32)))
    posing = Advert("clinic-1", bytes(range(32)), sign(stranger, said))
    with pytest.raises(ProtocolError, match="clinic-1"):
        keys["clinic-0"].agree([posing])


def test_two_keys_of_one_holder_or_a_book_without_oneself_are_refused():
    cohort = cohort_of(3, 1)
    keys = run_keys(cohort)
    second = RunKey.make(cohort, "clinic-1", node_key(1)).advert
    with pytest.raises(ProtocolError, match="two keys"):
        keys["clinic-0"].agree([*adverts_of(keys), second])
    with pytest.raises(ProtocolError, match="own"):
        keys["clinic-0"].agree([keys["clinic-1"].advert, keys["clinic-2"].advert])
    lost = RunKey.make(cohort, "clinic-0", node_key(0))
    with pytest.raises(ProtocolError, match="own"):
        lost.agree(adverts_of(keys))
    with pytest.raises(ProtocolError, match="2 holders or more in this holder's circle"):
        keys["clinic-0"].agree([keys["clinic-0"].advert])


def test_a_key_of_small_order_gives_no_secret():
    cohort = cohort_of(3, 0)
    keys = run_keys(cohort)
    zero = bytes(32)
    advert = Advert(
        "clinic-1", zero, sign(node_key(1), statement("run key", cohort.digest, b"clinic-1", zero))
    )
    book = keys["clinic-0"].agree([advert, keys["clinic-0"].advert, keys["clinic-2"].advert])
    with pytest.raises(ProtocolError, match="no secret"):
        book.shared_with("clinic-2")


@pytest.mark.parametrize(
    ("m", "dropouts", "colluders"), [(2, 1, 0), (4, 2, 0), (3, 1, 1), (5, 2, 1), (3, -1, 0)]
)
def test_a_cohort_that_two_drop_out_sets_could_split_is_refused(m, dropouts, colluders):
    with pytest.raises(ConfigError, match="tolerate fewer"):
        cohort_of(m, dropouts, colluders)


def test_a_cohort_needs_names_and_one_p384_key_each():
    other = ec.generate_private_key(ec.SECP256R1()).public_key()
    roster = {name: node_key(i).public_key() for i, name in enumerate(names(3))}
    with pytest.raises(ConfigError, match="P-384"):
        Cohort("run", {**roster, "clinic-1": other}, 0)
    with pytest.raises(ConfigError, match="two share one"):
        Cohort("run", {**roster, "clinic-1": roster["clinic-0"]}, 0)
    with pytest.raises(ConfigError, match="a name"):
        Cohort("", roster, 0)
    with pytest.raises(ConfigError, match="got 1"):
        Cohort("run", {"clinic-0": roster["clinic-0"]}, 0)
    with pytest.raises(ConfigError, match="own roster"):
        RunKey.make(Cohort("run", roster, 0), "clinic-0", node_key(1))


def test_statements_of_different_parts_differ():
    assert statement("a", b"bc", b"d") != statement("a", b"b", b"cd")
    assert statement("a", b"") != statement("a")
    assert statement("ab") != statement("a", b"b")


def test_secrets_do_not_show_in_messages():
    key = run_keys(cohort_of(2, 0))["clinic-0"]
    assert key.secret.hex() not in repr(key)
    assert repr(key.secret) not in repr(key)
