"""Users, keys and certificates for nats-server, and the part of a daemon's configuration for them."""

import base64
import hashlib
import json
import os
import time

import marked
import nkeys
from authority import Authority

KINDS = ["password", "token", "nkey", "credentials", "certificate"]


def make_key(prefix, seed=None):
    return nkeys.from_seed(nkeys.encode_seed(seed or os.urandom(32), prefix))


def public(key):
    return key.public_key.decode()


def seed_of(key):
    return bytes(key.seed).decode()


def write_secret(path, text, mode=0o600):
    """Writes another file and renames it into place, as a program that rotates a secret should do."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.chmod(mode)
    new.rename(path)
    return path


# ---- JWTs ----


def jwt(claims, signer):
    """A JWT of NATS, version 2."""
    def part(value):
        return base64.urlsafe_b64encode(value).rstrip(b"=").decode()

    claims = {"iat": int(time.time()), "iss": public(signer), **claims}
    claims["jti"] = base64.b32encode(hashlib.sha256(json.dumps(claims).encode()).digest()).rstrip(b"=").decode()
    head = part(json.dumps({"typ": "JWT", "alg": "ed25519-nkey"}).encode())
    text = f"{head}.{part(json.dumps(claims).encode())}"
    return f"{text}.{part(signer.sign(text.encode()))}"


class Operator:
    """An operator with one account, whose users have no limits."""

    def __init__(self):
        self.key = make_key(nkeys.PREFIX_BYTE_OPERATOR)
        self.account = make_key(nkeys.PREFIX_BYTE_ACCOUNT)
        self.revoked = {}
        # nats-server refuses to reload another one
        self.jwt = jwt({"sub": public(self.key), "name": "o", "nats": {"type": "operator", "version": 2}}, self.key)

    def config(self):
        none = {name: -1 for name in ("subs", "data", "payload", "imports", "exports", "conn", "leaf")}
        account = jwt({
            "sub": public(self.account), "name": "a",
            "nats": {"type": "account", "version": 2, "revocations": self.revoked,
                     "limits": {**none, "wildcards": True}},
        }, self.key)
        return (f"operator: {self.jwt}\nresolver: MEMORY\n"
                f"resolver_preload: {{ {public(self.account)}: {account} }}\n")

    def credentials(self, seconds=None):
        """A .creds file of a new user, and its public key."""
        user = make_key(nkeys.PREFIX_BYTE_USER)
        claims = {"sub": public(user), "name": "u",
                  "nats": {"type": "user", "version": 2, "subs": -1, "data": -1, "payload": -1, "pub": {}, "sub": {}}}
        if seconds is not None:
            claims["exp"] = int(time.time() + seconds)
        text = (f"-----BEGIN NATS USER JWT-----\n{jwt(claims, self.account)}\n------END NATS USER JWT------\n\n"
                f"-----BEGIN USER NKEY SEED-----\n{seed_of(user)}\n------END USER NKEY SEED------\n")
        return text, public(user)


# ---- One login of each kind ----


class Login:
    """Configures nats-server so that it demands this kind of login, and a daemon so that it has it."""

    def __init__(self, kind, folder):
        self.kind, self.folder = kind, folder
        self.config = folder / "nats.conf"
        self.file = folder / f"{kind}.secret"
        self.secrets = []  # must not be in any output
        self.operator = Operator() if kind == "credentials" else None
        self.authority = Authority(folder / "pki") if kind == "certificate" else None
        self.turn = 0
        self.rotate()

    def rotate(self, reload=None):
        """Makes new material; the server accepts it, and no longer the earlier one."""
        self.turn += 1
        self.grant(self.issue())
        if reload:
            reload()

    def issue(self):
        """Writes new material and returns what the server must be configured with."""
        if self.kind == "nkey":
            key = make_key(nkeys.PREFIX_BYTE_USER)
            self.remember(seed_of(key))
            return public(key)
        if self.kind == "credentials":
            text, user = self.operator.credentials()
            self.remember(text, next(line for line in text.splitlines() if line.startswith("SU")))
            return user
        if self.kind == "certificate":
            shown, key = self.authority.sign(f"client{self.turn}", "email:bridge@example.org")
            self.remember(key.read_text(), key.read_text().splitlines()[1])
            write_secret(self.folder / "client.pem", shown.read_text(), 0o644)
            return "bridge@example.org"
        secret = f'mark"\\{self.kind}{self.turn}SECRET{os.urandom(6).hex()}'
        self.remember(secret)
        return secret

    def remember(self, text, mark=None):
        self.secrets.append(marked.mark(mark or text))
        write_secret(self.file, text)

    def grant(self, *those):
        quoted = [json.dumps(one) for one in those]
        users = {
            "password": lambda: "authorization { users = [\n" + "\n".join(
                f'{{ user: "u{i}", password: {one} }}' for i, one in enumerate(quoted)) + "\n] }\n",
            "token": lambda: f"authorization {{ token: {quoted[-1]} }}\n",
            "nkey": lambda: "authorization { users = [\n" + "\n".join(f"{{ nkey: {o} }}" for o in quoted) + "\n] }\n",
            "credentials": lambda: self.operator.config(),
            "certificate": self.certificate_config,
        }
        self.config.write_text(users[self.kind]())

    def certificate_config(self):
        if not (self.folder / "pki/server.pem").exists():
            self.authority.sign("server")
        pki = self.folder / "pki"
        return (f'tls {{ cert_file: "{pki}/server.pem", key_file: "{pki}/server.key", ca_file: "{pki}/ca.pem",'
                " verify_and_map: true }\n"
                'authorization { users = [ { user: "bridge@example.org" } ] }\n')

    def keys(self, file=None):
        """The keys of the configuration group nats."""
        file = file or self.file
        return {
            "password": f'user = "u0"; password_file = "{file}";',
            "token": f'token_file = "{file}";',
            "nkey": f'nkey_seed_file = "{file}";',
            "credentials": f'credentials = "{file}";',
            "certificate": f'ca_file = "{self.folder}/pki/ca.pem"; cert_file = "{self.folder}/client.pem";'
                           f' key_file = "{file}";',
        }[self.kind]

    def key(self):
        return {"password": "password_file", "token": "token_file", "nkey": "nkey_seed_file",
                "credentials": "credentials", "certificate": "key_file"}[self.kind]
