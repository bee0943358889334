//! The secret that the processes of a run share, and proofs of knowing it.

use std::fmt;
use std::path::Path;

use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};

use crate::error::{Error, Result};

/// Bytes of a nonce.
pub(super) const NONCE: usize = 32;
/// Bytes of a proof.
pub(super) const PROOF: usize = 32;

/// Bytes of a secret that is not guessed.
pub const LEAST: usize = 16;

/// A shared secret. It is shown nowhere.
#[derive(Clone, Default)]
pub struct Secret(Vec<u8>);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Secret {
    /// This secret. An empty one is none: whoever can connect can prove it.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Secret {
        Secret(bytes.into())
    }

    /// A new one that nobody can guess.
    ///
    /// # Errors
    /// External, if the system gives no randomness.
    pub fn random() -> Result<Secret> {
        Ok(Secret(nonce()?.to_vec()))
    }

    /// The contents of a file without white space around them.
    ///
    /// # Errors
    /// `SECRET_NOT_READABLE` (external) and `SECRET_EMPTY` (user), naming the file.
    pub fn from_file(path: &Path) -> Result<Secret> {
        let text = std::fs::read(path).map_err(|e| {
            Error::external("SECRET_NOT_READABLE", format!("the secret in {} cannot be read", path.display()))
                .caused_by(e)
        })?;
        let text = text.trim_ascii();
        if text.is_empty() {
            return Err(Error::user("SECRET_EMPTY", format!("there is no secret in {}", path.display())));
        }
        Ok(Secret(text.to_vec()))
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether it has fewer than [`LEAST`] bytes: someone who listens to a proof could guess it.
    pub fn is_short(&self) -> bool {
        self.0.len() < LEAST
    }

    /// As text that [`from_hex`](Self::from_hex) reads.
    pub fn to_hex(&self) -> String {
        hex::encode(&self.0)
    }

    /// The secret that is written so; none if it is not.
    pub fn from_hex(text: &str) -> Option<Secret> {
        hex::decode(text).ok().map(Secret)
    }

    /// Proves that the secret is known, to whoever has chosen some of `parts`. `role` keeps the proofs of the two sides apart.
    pub(super) fn prove(&self, role: &str, parts: &[&[u8]]) -> [u8; PROOF] {
        let tag = hmac::sign(&self.key(), &message(role, parts));
        tag.as_ref().try_into().unwrap_or_default()
    }

    /// Whether a proof is right. Takes as long if it is not.
    pub(super) fn verify(&self, role: &str, parts: &[&[u8]], proof: &[u8]) -> bool {
        hmac::verify(&self.key(), &message(role, parts), proof).is_ok()
    }

    fn key(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, &self.0)
    }
}

/// What is proven. Lengths keep the parts from running into each other.
fn message(role: &str, parts: &[&[u8]]) -> Vec<u8> {
    let mut message = Vec::new();
    for part in [role.as_bytes()].iter().chain(parts) {
        message.extend((part.len() as u64).to_le_bytes());
        message.extend_from_slice(part);
    }
    message
}

/// Bytes that nobody has used before.
pub(super) fn nonce() -> Result<[u8; NONCE]> {
    let mut bytes = [0; NONCE];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|e| Error::external("NO_RANDOMNESS", format!("the system gives no random bytes: {e}")))?;
    Ok(bytes)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_holds_for_its_role_its_parts_and_its_secret_alone() {
        let secret = Secret::new("one");
        let proof = secret.prove("a", &[b"12", b"3"]);
        assert!(secret.verify("a", &[b"12", b"3"], &proof));
        assert!(!secret.verify("b", &[b"12", b"3"], &proof));
        assert!(!secret.verify("a", &[b"1", b"23"], &proof));
        assert!(!Secret::new("two").verify("a", &[b"12", b"3"], &proof));
        assert!(!Secret::default().verify("a", &[b"12", b"3"], &proof));
        assert!(!secret.verify("a", &[b"12", b"3"], &proof[..31]));
    }

    #[test]
    fn secrets_that_can_be_guessed_are_short() {
        assert!(Secret::new("fifteen letters").is_short() && Secret::default().is_short());
        assert!(!Secret::new("sixteen letters!").is_short() && !Secret::random().unwrap().is_short());
    }

    #[test]
    fn a_secret_is_not_shown_and_survives_hex() {
        let secret = Secret::random().unwrap();
        assert!(!format!("{secret:?}").contains(&secret.to_hex()));
        assert_eq!(Secret::from_hex(&secret.to_hex()).unwrap().0, secret.0);
    }
}
