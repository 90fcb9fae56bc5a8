//! A group's state in one file, so that its log can be short.
//!
//! ```text
//! "RDSTCKPT"  checksum u32  format u8  tenant 16 bytes  applied position  membership  image, packed or not
//! ```
//! A new one is written beside the old and renamed over it, both synced, so that there is always exactly
//! one that is whole.

use std::io;
use std::sync::Arc;

use base_ids::TenantId;
use store_log::{Files, Position};
use store_mvcc::{DecodeError, Reader, Writer};

use crate::HostError;
use crate::codec;
use crate::types::StoredMembership;

const MAGIC: [u8; 8] = *b"RDSTCKPT";
const FORMAT: u8 = 1;
const SUM_AT: usize = 8;
const CONTENT_AT: usize = 12;

const PLAIN: u8 = 0;
const DEFLATED: u8 = 1;
/// Larger images are written as they are: a restart has to be quick, and packing costs a second per 100 MB.
const COMPRESS_UP_TO: usize = 1 << 20;

/// The state of a group at one position of its log.
#[derive(Clone)]
pub(crate) struct Checkpoint {
    pub(crate) applied: Position,
    pub(crate) membership: StoredMembership,
    /// [`store_mvcc::Image`], encoded.
    pub(crate) image: Vec<u8>,
}

impl Checkpoint {
    pub(crate) fn encode(&self, tenant: TenantId) -> Vec<u8> {
        let mut to = Writer::with_capacity(self.image.len() / 2 + 256);
        to.raw(&MAGIC);
        to.raw(&[0; 4]);
        to.byte(FORMAT);
        to.raw(tenant.as_uuid().as_bytes());
        codec::write_position(&mut to, Some(self.applied));
        codec::write_stored_membership(&mut to, &self.membership);
        if self.image.len() <= COMPRESS_UP_TO {
            to.byte(DEFLATED);
            codec::deflate(&mut to, &self.image);
        } else {
            to.byte(PLAIN);
            to.raw(&self.image);
        }
        let mut bytes = to.finish();
        let sum = crc32fast::hash(&bytes[CONTENT_AT..]);
        bytes[SUM_AT..CONTENT_AT].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(tenant: TenantId, bytes: &[u8]) -> Result<Checkpoint, DecodeError> {
        let mut from = Reader::new(bytes);
        if from.take(MAGIC.len())? != MAGIC {
            return Err(from.invalid("no checkpoint"));
        }
        let sum = from.take(4)?;
        if crc32fast::hash(&bytes[CONTENT_AT..]).to_le_bytes() != sum {
            return Err(from.invalid("checksum mismatch"));
        }
        from.version(FORMAT)?;
        if from.take(16)? != tenant.as_uuid().as_bytes() {
            return Err(from.invalid("the checkpoint of another cluster"));
        }
        let applied =
            codec::read_position(&mut from)?.ok_or_else(|| from.invalid("a checkpoint of nothing"))?;
        let membership = codec::read_stored_membership(&mut from)?;
        let image = match from.byte()? {
            PLAIN => from.take(from.left())?.to_vec(),
            DEFLATED => codec::inflate(&mut from)?,
            _ => return Err(from.invalid("packing")),
        };
        Ok(Checkpoint { applied, membership, image })
    }
}

/// Where checkpoints are: one file per tenant.
#[derive(Clone)]
pub(crate) struct Checkpoints {
    files: Arc<dyn Files>,
}

impl Checkpoints {
    pub(crate) fn new(files: Arc<dyn Files>) -> Checkpoints {
        Checkpoints { files }
    }

    /// Makes `checkpoint` the tenant's; durable when it returns. Blocks.
    pub(crate) fn save(&self, tenant: TenantId, checkpoint: &Checkpoint) -> io::Result<u64> {
        let bytes = checkpoint.encode(tenant);
        let unfinished = format!("{tenant}.unfinished");
        let file = self.files.create(&unfinished, 0)?;
        file.write_at(0, &bytes)?;
        file.sync()?;
        self.files.rename(&unfinished, &name(tenant))?;
        self.files.sync_directory()?;
        Ok(bytes.len() as u64)
    }

    /// The tenant's checkpoint, or `None` if it never had one. Blocks.
    pub(crate) fn load(&self, tenant: TenantId) -> Result<Option<Checkpoint>, HostError> {
        let path = self.files.path(&name(tenant));
        let io = |source| HostError::Io { doing: "read", path: path.clone(), source };
        let file = match self.files.open(&name(tenant)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(io(error)),
        };
        let mut bytes = vec![0; usize::try_from(file.length().map_err(io)?).unwrap_or(0)];
        let read = file.read_at(0, &mut bytes).map_err(io)?;
        bytes.truncate(read);
        let checkpoint =
            Checkpoint::decode(tenant, &bytes).map_err(|source| HostError::Checkpoint { path, source })?;
        Ok(Some(checkpoint))
    }

    /// Removes whatever there is of the tenant.
    pub(crate) fn remove(&self, tenant: TenantId) -> io::Result<()> {
        for name in [name(tenant), format!("{tenant}.unfinished")] {
            match self.files.remove(&name) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        self.files.sync_directory()
    }

    /// Removes what belongs to none of `tenants`: files of deleted ones, and unfinished ones.
    pub(crate) fn sweep(&self, tenants: &[TenantId]) -> io::Result<()> {
        for file in self.files.list()? {
            let keep = match file.strip_suffix(".checkpoint") {
                Some(stem) => stem.parse().is_ok_and(|tenant: TenantId| tenants.contains(&tenant)),
                // Not of our making, so not ours to remove.
                None => !file.ends_with(".unfinished"),
            };
            if !keep {
                self.files.remove(&file)?;
            }
        }
        self.files.sync_directory()
    }
}

fn name(tenant: TenantId) -> String {
    format!("{tenant}.checkpoint")
}
