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
        ]
    )
    told = redaction.text("p@ss p%40ss\n inner t0ken whsec_abc eve host")
    assert told == "*** *** *** *** *** eve host"
    assert redaction.value({"a p@ss": ["p@ss", 1, ("x", None)]}) == {"a ***": ["***", 1, ["x", None]]}
