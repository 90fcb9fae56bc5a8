//! Room on the stack.
//!
//! Expressions and values are bounded in depth, but how much of the stack is left when we are called is not
//! ours to know, and running out of it ends the process with every cluster in it. So what recurses asks for
//! room first and goes on in a fresh piece if there is little; that check is a comparison of two numbers.

/// Less than this and a fresh piece is taken. One level takes a few KiB at most, even unoptimised.
const RED_ZONE_BYTES: usize = 128 * 1024;
const PIECE_BYTES: usize = 1024 * 1024;
/// What dropping the deepest tree may take, which cannot ask on its way.
const DROP_BYTES: usize = 512 * 1024;

#[inline]
pub(crate) fn deep<R>(run: impl FnOnce() -> R) -> R {
    stacker::maybe_grow(RED_ZONE_BYTES, PIECE_BYTES, run)
}

/// For work that recurses where it cannot ask.
pub(crate) fn with_room<R>(run: impl FnOnce() -> R) -> R {
    stacker::maybe_grow(DROP_BYTES, 2 * PIECE_BYTES, run)
}
