//! Container logs: the files that containerd writes, read as `kubectl logs` asks.
//!
//! A line is `<RFC 3339 time> <stdout|stderr> <F|P> <text>`; P is a part of a longer line. Files grow without a
//! bound of containerd's, so [`rotate`] moves a large one away. Nothing here holds a whole file in memory.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use tokio::fs::File;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncSeekExt, BufReader, SeekFrom};
use tokio::sync::mpsc;

/// A line of a log file is this long at most: containerd cuts at 16 KiB and adds its prefix.
const LINE_BYTES: usize = 64 << 10;

/// Read backwards in pieces of this size to find the last lines.
const PIECE_BYTES: u64 = 64 << 10;

/// How often a followed file is looked at: a person does not notice, a processor hardly.
const FOLLOW_EVERY: Duration = Duration::from_millis(100);

/// Sizes and counts of upstream: 10 MiB a file, five files.
pub const ROTATE_BYTES: u64 = 10 << 20;
const ROTATED_KEPT: usize = 4;

/// What of a log is wanted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wanted {
    pub follow: bool,
    pub timestamps: bool,
    pub tail_lines: Option<usize>,
    pub since: Option<Timestamp>,
    pub limit_bytes: Option<usize>,
    /// `Some("stdout")` or `Some("stderr")`: only that one.
    pub stream: Option<String>,
}

/// One line of a log file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Line<'a> {
    pub time: &'a str,
    pub stream: &'a str,
    /// The end of a line, not a part of one.
    pub full: bool,
    pub text: &'a [u8],
}

/// Takes a line of a file apart; `None` when it is none (cut off by a crash).
pub fn parse(line: &[u8]) -> Option<Line<'_>> {
    let mut parts = line.splitn(4, |byte| *byte == b' ');
    let time = std::str::from_utf8(parts.next()?).ok()?;
    let stream = std::str::from_utf8(parts.next()?).ok()?;
    let tag = parts.next()?;
    let text = parts.next().unwrap_or_default();
    matches!(stream, "stdout" | "stderr").then_some(())?;
    Some(Line { time, stream, full: tag.first() == Some(&b'F'), text })
}

/// What a container has written so far, as it wrote it: standard output and standard error. Nothing of a log
/// beyond `limit` bytes, which is no short session's.
pub async fn written(path: &Path, limit: u64) -> [Vec<u8>; 2] {
    let mut out = [Vec::new(), Vec::new()];
    let small = tokio::fs::metadata(path).await.is_ok_and(|file| file.len() <= limit);
    let Ok(log) = (if small { tokio::fs::read(path).await } else { Ok(Vec::new()) }) else { return out };
    for line in log.split(|byte| *byte == b'\n').filter_map(parse) {
        let to = &mut out[usize::from(line.stream == "stderr")];
        to.extend_from_slice(line.text);
        if line.full {
            to.push(b'\n');
        }
    }
    out
}

/// Sends the wanted part of the log at `path`, ending when `more` says that nothing follows any more.
///
/// Ends early when the reader has gone.
pub async fn read(
    path: &Path,
    wanted: &Wanted,
    more: impl Fn() -> bool,
    to: &mpsc::Sender<bytes::Bytes>,
) -> io::Result<()> {
    let mut file = File::open(path).await?;
    if let Some(lines) = wanted.tail_lines {
        let at = start_of_tail(&mut file, lines).await?;
        file.seek(SeekFrom::Start(at)).await?;
    }
    let mut left = wanted.limit_bytes.unwrap_or(usize::MAX);
    let mut reader = BufReader::new(file);
    let mut line = Vec::new();
    loop {
        // Asked before reading: what was written until then is read below.
        let more_to_come = wanted.follow && more();
        loop {
            let complete = next_line(&mut reader, &mut line).await?;
            if !complete {
                break;
            }
            if let Some(mut out) = render(&line, wanted) {
                out.truncate(left);
                left -= out.len();
                if to.send(out.into()).await.is_err() || left == 0 {
                    return Ok(());
                }
            }
            line.clear();
        }
        if !more_to_come {
            return Ok(());
        }
        tokio::select! {
            () = to.closed() => return Ok(()),
            () = tokio::time::sleep(FOLLOW_EVERY) => {}
        }
        if is_replaced(path, reader.get_ref()).await {
            reader = BufReader::new(File::open(path).await?);
            line.clear();
        }
    }
}

/// Appends to `line` up to the end of a line. False when the file ends first; the part stays in `line`.
async fn next_line(reader: &mut (impl AsyncBufRead + Unpin), line: &mut Vec<u8>) -> io::Result<bool> {
    let room = (LINE_BYTES.saturating_sub(line.len())).max(1) as u64;
    reader.take(room).read_until(b'\n', line).await?;
    if line.last() == Some(&b'\n') {
        line.pop();
        return Ok(true);
    }
    Ok(line.len() >= LINE_BYTES)
}

fn render(line: &[u8], wanted: &Wanted) -> Option<Vec<u8>> {
    let line = parse(line)?;
    if wanted.stream.as_deref().is_some_and(|stream| stream != line.stream) {
        return None;
    }
    if let Some(since) = wanted.since {
        let time: Timestamp = line.time.parse().ok()?;
        if time < since {
            return None;
        }
    }
    let mut out = Vec::with_capacity(line.text.len() + 40);
    if wanted.timestamps {
        out.extend_from_slice(line.time.as_bytes());
        out.push(b' ');
    }
    out.extend_from_slice(line.text);
    if line.full {
        out.push(b'\n');
    }
    Some(out)
}

/// Where the last `lines` lines of the file begin.
async fn start_of_tail(file: &mut File, lines: usize) -> io::Result<u64> {
    let length = file.seek(SeekFrom::End(0)).await?;
    if lines == 0 {
        return Ok(length);
    }
    let mut end = length;
    let mut found = 0;
    while end > 0 {
        let start = end.saturating_sub(PIECE_BYTES);
        file.seek(SeekFrom::Start(start)).await?;
        let mut piece = Vec::new();
        (&mut *file).take(end - start).read_to_end(&mut piece).await?;
        for (at, byte) in piece.iter().enumerate().rev() {
            let position = start + at as u64;
            // The newline that ends the file ends its last line and begins none.
            if *byte == b'\n' && position + 1 < length {
                found += 1;
                if found == lines {
                    return Ok(position + 1);
                }
            }
        }
        end = start;
    }
    Ok(0)
}

/// The file at `path` is another one than the open one: it was rotated.
async fn is_replaced(path: &Path, open: &File) -> bool {
    use std::os::unix::fs::MetadataExt;
    match (tokio::fs::metadata(path).await, open.metadata().await) {
        (Ok(there), Ok(here)) => there.ino() != here.ino(),
        _ => false,
    }
}

/// The last lines of a log as plain text, cut to `limit` bytes.
pub async fn tail(path: &Path, lines: usize, limit: usize) -> String {
    let (to, mut from) = mpsc::channel(lines.max(1) + 1);
    let wanted = Wanted { tail_lines: Some(lines), ..Wanted::default() };
    let reading = read(path, &wanted, || false, &to);
    // The channel holds all lines that are asked for, so reading does not wait for us.
    if let Err(error) = reading.await {
        tracing::debug!(path = %path.display(), %error, "log is not readable");
    }
    drop(to);
    let mut text = Vec::new();
    while let Some(line) = from.recv().await {
        text.extend_from_slice(&line);
    }
    let start = text.len().saturating_sub(limit);
    String::from_utf8_lossy(&text[start..]).into_owned()
}

/// Moves a log that has grown too large out of the way. True when the runtime must open a new one.
pub fn rotate(path: &Path, now: Timestamp) -> io::Result<bool> {
    match std::fs::metadata(path) {
        Ok(meta) if meta.len() > ROTATE_BYTES => {}
        Ok(_) => return Ok(false),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    }
    let (Some(folder), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else {
        return Ok(false);
    };
    std::fs::rename(path, folder.join(format!("{name}.{}", now.strftime("%Y%m%d-%H%M%S"))))?;
    let prefix = format!("{name}.");
    let entries = std::fs::read_dir(folder)?.filter_map(Result::ok).map(|entry| entry.path());
    let rotated = |path: &PathBuf| {
        path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(&prefix))
    };
    let mut old: Vec<PathBuf> = entries.filter(rotated).collect();
    old.sort();
    for path in old.iter().rev().skip(ROTATED_KEPT) {
        std::fs::remove_file(path)?;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "2026-11-30T21:00:00.000000001Z stdout F one\n\
                       2026-11-30T21:00:01Z stderr F two\n\
                       2026-11-30T21:00:02Z stdout P thr\n\
                       2026-11-30T21:00:02Z stdout F ee\n\
                       nonsense\n\
                       2026-11-30T21:00:03Z stdout F \n\
                       2026-11-30T21:00:04Z stdout F a b  c\n";

    async fn check(log: &str, wanted: Wanted, expected: &str) {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), log).unwrap();
        let (to, mut from) = mpsc::channel(100);
        read(file.path(), &wanted, || false, &to).await.unwrap();
        drop(to);
        let mut found = Vec::new();
        while let Some(piece) = from.recv().await {
            found.extend_from_slice(&piece);
        }
        assert_eq!(String::from_utf8_lossy(&found), expected, "{wanted:?}");
    }

    #[tokio::test]
    async fn a_log_gives_back_what_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("0.log");
        let lines = "2026-11-30T21:00:00Z stdout P one \n2026-11-30T21:00:00Z stdout F two\n\
                     2026-11-30T21:00:00Z stderr F oh no\n2026-11-30T21:00:00Z stdo";
        std::fs::write(&path, lines).unwrap();
        assert_eq!(written(&path, 1024).await, [b"one two\n".to_vec(), b"oh no\n".to_vec()]);
        let nothing: [Vec<u8>; 2] = Default::default();
        assert_eq!(written(&path, 10).await, nothing, "too large");
        assert_eq!(written(&folder.path().join("none"), 1024).await, nothing);
    }

    #[tokio::test]
    async fn a_log_is_read_as_asked() {
        let all = Wanted::default();
        let tail = |lines| Wanted { tail_lines: Some(lines), ..Wanted::default() };
        check(LOG, all.clone(), "one\ntwo\nthree\n\na b  c\n").await;
        check("", all.clone(), "").await;
        check("", tail(3), "").await;
        check(LOG, tail(0), "").await;
        check(LOG, tail(1), "a b  c\n").await;
        check(LOG, tail(2), "\na b  c\n").await;
        check(LOG, tail(100), "one\ntwo\nthree\n\na b  c\n").await;
        check(LOG, Wanted { stream: Some("stderr".into()), ..all.clone() }, "two\n").await;
        check(LOG, Wanted { limit_bytes: Some(5), ..all.clone() }, "one\nt").await;
        check(
            LOG,
            Wanted { since: Some("2026-11-30T21:00:03Z".parse().unwrap()), ..all.clone() },
            "\na b  c\n",
        )
        .await;
        let stamped = Wanted { timestamps: true, ..tail(1) };
        check(LOG, stamped, "2026-11-30T21:00:04Z a b  c\n").await;
        let many: String = (0..20_000).map(|n| format!("2026-11-30T21:00:00Z stdout F {n}\n")).collect();
        check(&many, tail(2), "19998\n19999\n").await;
    }

    #[tokio::test]
    async fn a_followed_log_goes_on_through_a_rotation() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("0.log");
        std::fs::write(&path, "2026-11-30T21:00:00Z stdout F one\n").unwrap();
        let (to, mut from) = mpsc::channel(10);
        let reader = tokio::spawn({
            let path = path.clone();
            async move { read(&path, &Wanted { follow: true, ..Wanted::default() }, || true, &to).await }
        });
        assert_eq!(from.recv().await.unwrap(), "one\n");
        std::fs::rename(&path, folder.path().join("0.log.1")).unwrap();
        std::fs::write(&path, "2026-11-30T21:00:01Z stdout F two\n").unwrap();
        assert_eq!(from.recv().await.unwrap(), "two\n");
        drop(from);
        reader.await.unwrap().unwrap();
    }

    #[test]
    fn a_large_log_is_moved_away_and_old_ones_go() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("0.log");
        let mut now: Timestamp = "2026-11-30T21:00:00Z".parse().unwrap();
        assert!(!rotate(&path, now).unwrap());
        for _ in 0..7 {
            std::fs::File::create(&path).unwrap().set_len(ROTATE_BYTES + 1).unwrap();
            assert!(rotate(&path, now).unwrap());
            assert!(!path.exists());
            now += jiff::SignedDuration::from_secs(1);
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), ROTATED_KEPT);
    }
}
