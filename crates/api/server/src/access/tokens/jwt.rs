//! JSON Web Tokens with one algorithm and one key: ES256 and the server's own.
//!
//! What must always hold: a token is read only after its signature was found good; no header chooses the algorithm, and no
//! token is longer than a known number of bytes.

use std::io;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rcgen::{KeyPair, PublicKeyData as _};
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, UnparsedPublicKey,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::access::pki::{self, PkiError};

pub(super) const ALGORITHM: &str = "ES256";
/// Bytes of a token; those we make have about a thousand.
const MAX_TOKEN_BYTES: usize = 16 * 1024;
/// Bytes of a coordinate of the curve.
const COORDINATE: usize = 32;

#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    #[error("cannot read the key of service account tokens {path}: {source}")]
    ReadKey { path: PathBuf, source: io::Error },
    #[error(
        "the key of service account tokens in {path} cannot be used: {message}; remove it to begin with a new one"
    )]
    ParseKey { path: PathBuf, message: String },
    #[error(transparent)]
    WriteKey(#[from] PkiError),
}

/// The key that signs tokens.
pub(super) struct TokenKey {
    pair: EcdsaKeyPair,
    /// The point of the curve: a byte that says it is not compressed, and two coordinates.
    point: Vec<u8>,
    id: String,
    random: SystemRandom,
}

impl std::fmt::Debug for TokenKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TokenKey({})", self.id)
    }
}

impl TokenKey {
    /// Loads the key from a file that only its owner can read, or makes it there.
    pub(super) fn load_or_create(path: &Path) -> Result<Self, KeyError> {
        let parse_failed = |message: String| KeyError::ParseKey {
            path: path.to_owned(),
            message,
        };
        let pair = match std::fs::read_to_string(path) {
            Ok(pem) => KeyPair::from_pem(&pem).map_err(|error| parse_failed(error.to_string()))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let pair = KeyPair::generate().map_err(|error| parse_failed(error.to_string()))?;
                pki::write_private(path, pair.serialize_pem().as_bytes())?;
                pair
            }
            Err(source) => {
                let path = path.to_owned();
                return Err(KeyError::ReadKey { path, source });
            }
        };
        let random = SystemRandom::new();
        let signing =
            EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &pair.serialize_der(), &random)
                .map_err(|error| parse_failed(error.to_string()))?;
        let id = URL_SAFE_NO_PAD.encode(Sha256::digest(pair.subject_public_key_info()));
        Ok(Self {
            pair: signing,
            point: pair.public_key_raw().to_vec(),
            id,
            random,
        })
    }

    /// A signed token; `None` if the machine has no randomness to sign with.
    pub(super) fn sign(&self, claims: &impl Serialize) -> Option<String> {
        let header = json!({"alg": ALGORITHM, "kid": self.id});
        let claims = serde_json::to_string(claims).ok()?;
        let signed = format!(
            "{}.{}",
            URL_SAFE_NO_PAD.encode(header.to_string()),
            URL_SAFE_NO_PAD.encode(claims)
        );
        let signature = self.pair.sign(&self.random, signed.as_bytes()).ok()?;
        Some(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }

    /// What a token says; `None` if it is none, or not one that this key has signed.
    pub(super) fn open_token<T: DeserializeOwned>(&self, token: &str) -> Option<T> {
        if token.len() > MAX_TOKEN_BYTES {
            return None;
        }
        let (signed, signature) = token.rsplit_once('.')?;
        let (header, claims) = signed.split_once('.')?;
        let signature = URL_SAFE_NO_PAD.decode(signature).ok()?;
        let key = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, &self.point);
        key.verify(signed.as_bytes(), &signature).ok()?;
        let header: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(header).ok()?).ok()?;
        if header["alg"] != ALGORITHM {
            return None;
        }
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).ok()?).ok()
    }

    /// The public half, as a key set has it.
    pub(super) fn public_jwk(&self) -> Value {
        let (x, y) = self.point[1..].split_at(COORDINATE);
        json!({
            "use": "sig",
            "kty": "EC",
            "kid": self.id,
            "crv": "P-256",
            "alg": ALGORITHM,
            "x": URL_SAFE_NO_PAD.encode(x),
            "y": URL_SAFE_NO_PAD.encode(y),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn only_what_the_key_has_signed_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("sa.key");
        let key = TokenKey::load_or_create(&path).unwrap();
        assert_eq!(
            std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        let token = key.sign(&json!({"sub": "ann"})).unwrap();
        let read = |token: &str| key.open_token::<Value>(token);
        assert_eq!(read(&token), Some(json!({"sub": "ann"})));
        let again = TokenKey::load_or_create(&path).unwrap();
        assert!(
            again.open_token::<Value>(&token).is_some(),
            "a restart changes nothing"
        );
        let other = TokenKey::load_or_create(&directory.path().join("other")).unwrap();
        assert_eq!(other.open_token::<Value>(&token), None);
        let (signed, signature) = token.rsplit_once('.').unwrap();
        let (header, _) = signed.split_once('.').unwrap();
        let forged = URL_SAFE_NO_PAD.encode("{\"sub\":\"root\"}");
        let none = URL_SAFE_NO_PAD.encode("{\"alg\":\"none\"}");
        for bad in [
            format!("{header}.{forged}.{signature}"),
            format!("{none}.{forged}."),
            format!("{signed}."),
            "a.b.c".to_owned(),
            "abc".to_owned(),
            String::new(),
            "x".repeat(MAX_TOKEN_BYTES + 1),
        ] {
            assert_eq!(read(&bad), None, "{bad:.80}");
        }
    }

    #[test]
    fn a_key_that_cannot_be_used_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("sa.key");
        std::fs::write(&path, "nonsense").unwrap();
        let error = TokenKey::load_or_create(&path).unwrap_err();
        assert!(
            error.to_string().contains("remove it to begin with a new one"),
            "{error}"
        );
    }
}
