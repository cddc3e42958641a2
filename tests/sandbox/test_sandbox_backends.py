"""The conformance check of sandbox backends, with an example of a package's own."""

import pytest

from flowzoo import plugins
from flowzoo.errors import UsageError
from flowzoo.plugins import SANDBOX_GROUP, Plugin
from flowzoo.sandbox import Sandbox, tier
from flowzoo.sandbox.attacks import suite
from flowzoo.sandbox.testing import check_backend
from tests.sandbox import example_backend

FIRST_TIER_ONLY = True
NICE = Plugin("nice", "tests.sandbox.example_backend:SPEC", "nice-sandbox 1.0")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that offers the backend `nice`."""
    offers = dict.fromkeys(plugins.GROUPS, ()) | {SANDBOX_GROUP: (NICE,)}
    monkeypatch.setattr(plugins, "_plugins", lambda path: offers)


@pytest.mark.full
@pytest.mark.xdist_group("attacks")
@pytest.mark.parametrize("name", ["namespaces", "landlock", "unsafe"])
def test_our_backends_conform(name, monkeypatch):
    if not tier.BACKENDS[name].check().ok:
        pytest.skip(f"{name} does not work here")
    for limit in ("HONEST_S", "SLACK_S"):  # of a machine that is quiet
        monkeypatch.setattr(suite, limit, 60.0)
    check_backend(name)


@pytest.mark.xdist_group("attacks")
@pytest.mark.usefixtures("installed")
def test_a_backend_of_a_package_is_found_by_its_name_and_conforms():
    if not tier.BACKENDS["namespaces"].check().ok:
        pytest.skip("namespaces do not work here")
    check_backend("nice", attacks=False)
    assert "nice" in tier.backend_names()


@pytest.mark.usefixtures("installed")
def test_a_package_must_offer_a_spec_of_that_name(monkeypatch):
    monkeypatch.setattr(example_backend, "SPEC", "nice")
    with pytest.raises(UsageError, match="must be a BackendSpec with the name 'nice'"):
        Sandbox("nice")


def test_the_check_notices_a_backend_that_does_not_work(monkeypatch):
    broken = tier.BackendSpec(
        name="broken", trust="broken: nothing", target="x:Y",
        check=lambda: tier.TierCheck(False, "no such machine"),
    )  # fmt: skip
    monkeypatch.setitem(tier.BACKENDS, "broken", broken)
    with pytest.raises(AssertionError, match="no such machine"):
        check_backend("broken")
