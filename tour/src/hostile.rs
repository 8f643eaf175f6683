//! The means of a hostile process: its own pages of a link, the socket that every process may
//! connect to, and a name of its own to serve. None of it passes the library's checks.

use anyhow::{Context, Result, anyhow, bail};
use hamlyn::link::cells::READER_WORDS_BYTES;
use hamlyn::wire::{HEADER_WORDS, LINE_BYTES};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, accept_with, bind, connect, listen, recv, sendmsg, socket_with,
};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

/// One mapping of shared memory in this process.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SharedPages {
    pub start: u64,
    pub bytes: u64,
    pub is_writable: bool,
    /// In /proc/self/map_files.
    pub name: String,
}

/// The memory files mapped in this process, from the kernel.
pub fn shared_pages() -> Result<BTreeSet<SharedPages>> {
    let maps = fs::read_to_string("/proc/self/maps").context("cannot read /proc/self/maps")?;
    Ok(maps.lines().filter_map(parse_mapping).collect())
}

fn parse_mapping(line: &str) -> Option<SharedPages> {
    let mut fields = line.split_whitespace();
    let (range, permissions) = (fields.next()?, fields.next()?);
    if !permissions.ends_with('s') || !line.contains("/memfd:") {
        return None;
    }
    let (start, end) = range.split_once('-')?;
    let hex = |text| u64::from_str_radix(text, 16).ok();
    let (start, end) = (hex(start)?, hex(end)?);
    let is_writable = permissions.as_bytes().get(1) == Some(&b'w');
    Some(SharedPages { start, bytes: end - start, is_writable, name: range.to_owned() })
}

/// This process's own memory as a file: every process can write the memory that this file can
/// write.
pub fn own_memory() -> Result<File> {
    File::options().read(true).write(true).open("/proc/self/mem").context("cannot open own memory")
}

/// This process's ring of one link, written without the library.
pub struct HostileRing {
    memory: File,
    pages: SharedPages,
    position: u64,
}

impl HostileRing {
    /// The ring of the link that was made after `before` was taken; nothing has been sent over it
    /// yet.
    pub fn new(before: &BTreeSet<SharedPages>) -> Result<Self> {
        let pages = shared_pages()?
            .into_iter()
            .find(|pages| pages.is_writable && !before.contains(pages))
            .ok_or_else(|| anyhow!("the new link has no writable pages"))?;
        Ok(Self { memory: own_memory()?, pages, position: 0 })
    }

    fn lines(&self) -> u64 {
        (self.pages.bytes - READER_WORDS_BYTES as u64) / LINE_BYTES as u64
    }

    /// A packet of one line, with any header and body.
    pub fn push(&mut self, header: [u64; HEADER_WORDS], body: [u64; 2]) -> Result<()> {
        let [first, rest @ ..] = header;
        let line = self.pages.start
            + READER_WORDS_BYTES as u64
            + self.position % self.lines() * LINE_BYTES as u64;
        let words = rest.iter().chain(&body).flat_map(|word| word.to_le_bytes());
        self.memory.write_all_at(&words.collect::<Vec<_>>(), line + 8)?;
        // The stamp of the lap comes last: it publishes the packet.
        let stamp = 0x8000_0000 | (self.position / self.lines());
        self.memory.write_all_at(&(first & !0xffff_ffff | stamp).to_le_bytes(), line)?;
        self.position += 1;
        Ok(())
    }

    /// Everything but the first word of every line: packets that are never finished.
    pub fn begin_packets(&mut self) -> Result<()> {
        for line in 0..self.lines() {
            let at = self.pages.start + READER_WORDS_BYTES as u64 + line * LINE_BYTES as u64;
            self.memory.write_all_at(&[0xa5; LINE_BYTES - 8], at + 8)?;
        }
        Ok(())
    }

    /// Writes random bytes over every writable page.
    ///
    /// The reader ignores purely random bytes. So each line gets the stamp that the reader waits
    /// for; and with `header`, a header that is nearly right, of which the bits of `changed` are
    /// random.
    pub fn scribble(
        &mut self,
        random: &mut impl FnMut() -> u64,
        header: Option<([u64; HEADER_WORDS], [u64; HEADER_WORDS])>,
    ) -> Result<()> {
        let mut bytes: Vec<u8> = Vec::new();
        while bytes.len() < self.pages.bytes as usize {
            bytes.extend(random().to_le_bytes());
        }
        for line in bytes[READER_WORDS_BYTES..].chunks_exact_mut(LINE_BYTES) {
            if let Some((words, changed)) = header {
                for ((word, changed), bytes) in words.iter().zip(changed).zip(line.chunks_mut(8)) {
                    let word = word ^ random() & changed;
                    bytes.copy_from_slice(&word.to_le_bytes());
                }
            }
            line[..4].copy_from_slice(&0x8000_0000u32.to_le_bytes());
        }
        Ok(self.memory.write_all_at(&bytes, self.pages.start)?)
    }
}

/// Connects to a service's socket, and sends nothing.
pub fn connect_to(path: &Path) -> Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Sends one frame with descriptors, as far as the kernel allows.
pub fn send_frame(
    socket: impl AsFd,
    frame: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> rustix::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    sendmsg(socket, &[IoSlice::new(frame)], &mut control, SendFlags::NOSIGNAL).map(|_| ())
}

/// The next frame; `None`: the other end closed.
pub fn receive_frame(socket: impl AsFd, patience: Duration) -> Result<Option<Vec<u8>>> {
    if !wait_readable(&socket, patience)? {
        bail!("nothing came for {} s", patience.as_secs_f32());
    }
    let mut frame = vec![0; 16 << 10];
    match recv(&socket, &mut frame[..], RecvFlags::DONTWAIT) {
        Ok((0, _)) | Err(rustix::io::Errno::CONNRESET) => Ok(None),
        Ok((bytes, _)) => Ok(Some(frame[..bytes].to_vec())),
        Err(error) => Err(error.into()),
    }
}

/// Whether there is something to read within the time limit.
pub fn wait_readable(socket: impl AsFd, patience: Duration) -> Result<bool> {
    let mut fds = [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN)];
    let timeout =
        Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: patience.subsec_nanos() as i64 };
    Ok(poll(&mut fds, Some(&timeout))? > 0)
}

/// Serves a name, against the library's rules.
pub fn listen_at(path: &Path) -> Result<OwnedFd> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
        fs::set_permissions(directory, std::os::unix::fs::PermissionsExt::from_mode(0o711))?;
    }
    let _ = fs::remove_file(path);
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o666))?;
    listen(&socket, 8)?;
    Ok(socket)
}

/// The next connection, within the time limit.
pub fn accept_from(listener: &OwnedFd, patience: Duration) -> Result<OwnedFd> {
    if !wait_readable(listener, patience)? {
        bail!("nobody connected for {} s", patience.as_secs_f32());
    }
    Ok(accept_with(listener, SocketFlags::CLOEXEC)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_of_memory_files_are_told_from_others() {
        let line = "7f00-7f80 rw-s 00000000 00:01 5 /memfd:hamlyn (deleted)";
        let pages = parse_mapping(line).unwrap();
        assert_eq!((pages.start, pages.bytes, pages.is_writable), (0x7f00, 0x80, true));
        assert_eq!(parse_mapping("7f00-7f80 rw-p 00000000 00:00 0 [heap]"), None);
        assert!(!parse_mapping(&line.replace("rw-s", "r--s")).unwrap().is_writable);
    }
}
