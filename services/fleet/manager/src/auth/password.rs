//! Passwords: argon2id, off the threads that serve, a few at a time.
//!
//! Not here: who may try how often (`throttle`).

use std::sync::Arc;
use std::time::Duration;

use argon2::password_hash::{PasswordHash, PasswordHasher, PasswordVerifier, SaltString};
use argon2::{Algorithm, Argon2, Params, Version};
use fleet_model::Hidden;
use tokio::sync::Semaphore;

use super::secret::random;

/// OWASP's password storage cheat sheet: argon2id with 19 MiB, two passes, one lane.
const MEMORY_KIB: u32 = 19 * 1024;
const PASSES: u32 = 2;
const LANES: u32 = 1;

/// Hashes computed at the same time: each takes 19 MiB and a core for tens of milliseconds, and
/// clusters are served by the same machine.
const AT_ONCE: usize = 2;

/// Who waits longer is told to try again.
const PATIENCE: Duration = Duration::from_secs(5);

/// Requests that wait for their turn; more are told to try again at once.
const WAITING: usize = 64;

/// The length of a password in characters: NIST SP 800-63B asks for at least 8 and for letting through
/// at least 64; we ask for a phrase.
const MIN_CHARS: usize = 12;
const MAX_CHARS: usize = 128;

#[derive(Debug, thiserror::Error)]
pub enum PasswordError {
    #[error("too many people sign in right now")]
    Busy,
    #[error("a password has {MIN_CHARS} to {MAX_CHARS} characters")]
    Length,
    #[error("password hashing failed: {0}")]
    Hash(String),
}

/// Whether `password` may become one.
pub(crate) fn check(password: &Hidden) -> Result<(), PasswordError> {
    let chars = password.expose().chars().count();
    if (MIN_CHARS..=MAX_CHARS).contains(&chars) { Ok(()) } else { Err(PasswordError::Length) }
}

/// Computes and compares. Clones share the turns.
#[derive(Debug, Clone)]
pub(crate) struct Hasher {
    turns: Arc<Semaphore>,
    queue: Arc<Semaphore>,
    /// Of a password nobody has: compared with when there is no real one, so that it takes as long.
    nobody: Arc<str>,
}

impl Hasher {
    pub(crate) fn new() -> Result<Hasher, PasswordError> {
        let nobody = hash_now(&hex::encode(random::<32>()))?;
        Ok(Hasher {
            turns: Arc::new(Semaphore::new(AT_ONCE)),
            queue: Arc::new(Semaphore::new(AT_ONCE + WAITING)),
            nobody: nobody.into(),
        })
    }

    /// The PHC string to keep. The password was [`check`]ed.
    pub(crate) async fn hash(&self, password: &Hidden) -> Result<String, PasswordError> {
        let password = password.clone();
        self.in_turn(move || hash_now(password.expose())).await?
    }

    /// Whether `password` is the one of `hash`. Without a hash it isn't, after the same work.
    pub(crate) async fn matches(&self, password: &Hidden, hash: Option<&str>) -> Result<bool, PasswordError> {
        // A megabyte of password would be a way to keep a core busy.
        if password.expose().chars().count() > MAX_CHARS {
            return Ok(false);
        }
        let (known, hash) = (hash.is_some(), hash.unwrap_or(&self.nobody).to_owned());
        let password = password.clone();
        let same = self.in_turn(move || matches_now(password.expose(), &hash)).await??;
        Ok(known && same)
    }

    async fn in_turn<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, PasswordError> {
        let _place = self.queue.clone().try_acquire_owned().map_err(|_| PasswordError::Busy)?;
        let turn = tokio::time::timeout(PATIENCE, self.turns.clone().acquire_owned())
            .await
            .map_err(|_| PasswordError::Busy)?
            .map_err(|_| PasswordError::Busy)?;
        // The turn ends with the work, even when nobody waits for it any more.
        let done = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            work()
        });
        done.await.map_err(|error| PasswordError::Hash(error.to_string()))
    }
}

fn argon2() -> Result<Argon2<'static>, PasswordError> {
    let params = Params::new(MEMORY_KIB, PASSES, LANES, None)
        .map_err(|error| PasswordError::Hash(error.to_string()))?;
    Ok(Argon2::new(Algorithm::Argon2id, Version::V0x13, params))
}

fn hash_now(password: &str) -> Result<String, PasswordError> {
    let failed = |error: argon2::password_hash::Error| PasswordError::Hash(error.to_string());
    let salt = SaltString::encode_b64(&random::<16>()).map_err(failed)?;
    Ok(argon2()?.hash_password(password.as_bytes(), &salt).map_err(failed)?.to_string())
}

/// Takes the parameters of the hash, so that old hashes work after the parameters changed.
fn matches_now(password: &str, hash: &str) -> Result<bool, PasswordError> {
    let hash = PasswordHash::new(hash).map_err(|error| PasswordError::Hash(error.to_string()))?;
    match Argon2::default().verify_password(password.as_bytes(), &hash) {
        Ok(()) => Ok(true),
        Err(argon2::password_hash::Error::Password) => Ok(false),
        Err(error) => Err(PasswordError::Hash(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_right_password_matches_and_nothing_else_does() {
        let hasher = Hasher::new().unwrap();
        let right = Hidden::new("correct horse battery");
        let hash = hasher.hash(&right).await.unwrap();
        assert!(hash.starts_with("$argon2id$v=19$m=19456,t=2,p=1$"), "{hash}");
        let long = "x".repeat(1_000_000);
        for (given, hash, wanted) in [
            ("correct horse battery", Some(hash.as_str()), true),
            ("correct horse batterz", Some(hash.as_str()), false),
            ("", Some(hash.as_str()), false),
            (long.as_str(), Some(hash.as_str()), false),
            ("correct horse battery", None, false),
        ] {
            assert_eq!(hasher.matches(&Hidden::new(given), hash).await.unwrap(), wanted, "{given:.30}");
        }
        assert!(hasher.matches(&right, Some("no hash")).await.is_err());
    }

    #[test]
    fn a_password_is_a_phrase() {
        for (password, fine) in [
            ("", false),
            ("elevenchars", false),
            ("twelve chars", true),
            (&"é".repeat(12), true),
            (&"x".repeat(128), true),
            (&"x".repeat(129), false),
        ] {
            assert_eq!(check(&Hidden::new(password)).is_ok(), fine, "{password}");
        }
    }
}
