from __future__ import annotations

from postroom.doctor.redaction import Redaction


def test_passwords_tokens_and_secret_options_are_hidden_wherever_they_occur() -> None:
    redaction = Redaction(
        [
            "postgresql://ada:p%40ss@host/shop?sslpassword=inner",
            "nats://t0ken@host",
            "https://host/hook?postroom.secret=whsec_abc&x=1",
            "redis://host",
            "mysql://eve@host/shop",
            "mysql://eve:sh@host/shop",
        ]
    )
    told = redaction.text("p@ss p%40ss\n inner t0ken whsec_abc eve host t0kens sh")
    assert told == "*** *** *** *** *** eve host t0kens sh"
    assert redaction.value({"a p@ss": ["p@ss", 1, ("x", None)]}) == {"a ***": ["***", 1, ["x", None]]}


def test_without_secrets_nothing_is_hidden() -> None:
    assert Redaction(["redis://host"]).text("redis://host  is\taway") == "redis://host is away"
