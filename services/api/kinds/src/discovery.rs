//! Discovery documents, made from [`ResourceInfo`]s: built-in ones and those of custom resources alike.

use api_machinery::Gvk;

/// base64 of the first eight bytes of the SHA-256 of `group/version/kind`.
pub fn storage_version_hash(kind: &Gvk) -> String {
    use base64::Engine;
    use sha2::Digest;
    let digest = sha2::Sha256::digest(format!("{}/{}/{}", kind.group, kind.version, kind.kind));
    base64::engine::general_purpose::STANDARD.encode(&digest[..8])
}
