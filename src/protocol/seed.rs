//! Seeds (Hamlyn 3.3): bytes that a receiver end point hands out so that a sender end point can be
//! grown from them elsewhere.
//!
//! ```text
//! 0      4        6      8      16     32     36       36 + n       40 + n
//! magic  version  n: u16 node   token  kind   service  checksum
//! ```
//! All little-endian. The paper's seeds hold tickets; these hold a random *token*. For it the
//! receiver gives each sender tickets of its own when it is grown, so that one sender's tickets
//! reveal nothing about another's memory, and a copied seed can be refused. The checksum finds
//! accidents; the receiver alone decides by the token whether a seed is genuine.

use crate::wire::NodeId;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;

const MAGIC: [u8; 4] = *b"HSd1";
const VERSION: u16 = 3;
/// Bytes of a [`Kind`] on the wire.
pub(crate) const KIND_BYTES: usize = 4;
const HEAD_BYTES: usize = 36;
const CHECKSUM_BYTES: usize = 4;
/// Longest seed, in bytes.
pub const SEED_BYTES_MAX: usize = HEAD_BYTES + SERVICE_BYTES_MAX + CHECKSUM_BYTES;
/// `user@name`, as long as the control plane takes them; of another host, as long as they fit.
const SERVICE_BYTES_MAX: usize = 97;

/// The protocol of an end point: a number of 32 bits that both ends know. The library has those
/// below; a program that writes its own makes one of four characters.
///
/// ```
/// use hamlyn::protocol::Kind;
///
/// const LOCKS: Kind = Kind::new(*b"lock");
/// assert_eq!(LOCKS.to_string(), "lock");
/// assert_eq!(Kind::STREAM.to_string(), "stream");
/// assert_eq!(Kind::from_number(LOCKS.number()), LOCKS);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Kind(u32);

impl Kind {
    /// Simple datagrams.
    pub const DATAGRAM: Self = Self(1);
    /// Tagged remote write.
    pub const TAGGED: Self = Self(2);
    /// A stream of records.
    pub const STREAM: Self = Self(3);
    /// Requests and replies.
    pub const CALL: Self = Self(4);
    /// Group receive.
    pub const GROUP: Self = Self(5);
    /// A byte stream, both ways.
    pub const BYTES: Self = Self(6);
    /// Publish and subscribe.
    pub const PUBLISH: Self = Self(7);

    /// A protocol of the program's own. Panics, in a constant while compiling, if one of the
    /// characters is not printable ASCII: so it is none of the library's.
    pub const fn new(name: [u8; 4]) -> Self {
        let mut i = 0;
        while i < name.len() {
            assert!(name[i].is_ascii_graphic(), "a kind is four printable characters of ASCII");
            i += 1;
        }
        Self(u32::from_le_bytes(name))
    }

    /// From the number on the wire.
    pub const fn from_number(number: u32) -> Self {
        Self(number)
    }

    /// The number on the wire.
    pub const fn number(self) -> u32 {
        self.0
    }

    pub(crate) fn to_bytes(self) -> [u8; KIND_BYTES] {
        self.0.to_le_bytes()
    }

    pub(crate) fn from_bytes(bytes: [u8; KIND_BYTES]) -> Self {
        Self(u32::from_le_bytes(bytes))
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.to_bytes();
        f.write_str(match *self {
            Self::DATAGRAM => "datagram",
            Self::TAGGED => "tagged remote write",
            Self::STREAM => "stream",
            Self::CALL => "request and reply",
            Self::GROUP => "group",
            Self::BYTES => "byte stream",
            Self::PUBLISH => "publish and subscribe",
            _ => match core::str::from_utf8(&name) {
                Ok(name) if name.bytes().all(|byte| byte.is_ascii_graphic()) => name,
                _ => return write!(f, "number {}", self.0),
            },
        })
    }
}

/// Proves to a receiver that it gave the seed out. The holder of a token may grow a sender.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token(pub [u8; 16]);

impl Token {
    /// No token: the end point was found by its name, and access to that decides.
    pub const NONE: Self = Self([0; 16]);
}

impl fmt::Debug for Token {
    // It is a secret, and logs are read by many.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// The address of a receiver end point for a sender. A secret: its holder can send.
///
/// ```
/// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-seed-{}", std::process::id()));
/// # let config = hamlyn::Config::from_env()?.dir(&dir);
///
/// use hamlyn::protocol::{Manager, Seed, Server, ServerConfig};
///
/// let manager = Manager::with_config(config)?;
/// let server = Server::new(&manager, ServerConfig::default())?;
/// let seed = server.seed()?;
/// // As bytes in a message, or as text on a command line.
/// assert_eq!(Seed::from_bytes(&seed.to_bytes())?, seed);
/// assert_eq!(seed.to_string().parse::<Seed>()?, seed);
/// # drop((server, manager));
/// # std::fs::remove_dir_all(&dir).ok();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seed {
    pub(crate) kind: Kind,
    pub(crate) node: NodeId,
    pub(crate) token: Token,
    pub(crate) service: String,
}

/// Bytes or text that are no seed, or a seed that cannot be used on other hosts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub enum SeedError {
    /// Too few bytes, or too many.
    #[error("a seed of {0} bytes is cut off or has something behind it")]
    Length(usize),
    /// Other bytes altogether.
    #[error("this is no seed: it does not begin with the bytes of one")]
    NotASeed,
    /// From a newer library.
    #[error("the seed has version {0}, and this library reads version {VERSION}")]
    Version(u16),
    /// Bytes were changed on the way.
    #[error("the seed was changed on its way: its checksum does not fit")]
    Checksum,
    /// A name that no library writes.
    #[error("the seed's {0} is none that exists")]
    Content(&'static str),
    /// Text with something other than hexadecimal digits.
    #[error("{0:?} at position {1} is no hexadecimal digit")]
    Digit(char, usize),
    /// Not the address of a host.
    #[cfg(feature = "tls")]
    #[error(transparent)]
    Host(#[from] crate::control::NameError),
    /// The host's name makes the seed too long.
    #[cfg(feature = "tls")]
    #[error(
        "{0:?} has too many characters: with it, a seed would be longer than {SEED_BYTES_MAX} bytes"
    )]
    HostTooLong(String),
}

impl Seed {
    /// The same seed for bearers on other hosts, who find the receiver's host at `at`: `host:port`,
    /// as in a name `hamlyn://host:port/service`. The receiver's node has to listen there (the
    /// setting `listen`).
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-at-host-{}", std::process::id()));
    /// use hamlyn::protocol::{Kind, Manager, Server, ServerConfig};
    ///
    /// # let config = hamlyn::Config::from_env()?.dir(&dir);
    /// let manager = Manager::with_config(config)?;
    /// let server = Server::new(&manager, ServerConfig::default())?;
    /// let seed = server.seed()?;
    /// assert_eq!((seed.kind(), seed.node()), (Kind::from_number(4), manager.id()));
    /// // For a sender on another host, which finds this one there.
    /// let far = seed.at_host("clock.example:4000")?;
    /// assert_eq!((far.kind(), far.node()), (Kind::CALL, manager.id()));
    /// # drop(server);
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(feature = "tls")]
    pub fn at_host(&self, at: &str) -> Result<Self, SeedError> {
        let scheme = crate::control::names::SCHEME;
        // Between hosts there are no users.
        let own = self.service.rsplit(['/', '@']).next().unwrap_or_default();
        let name: crate::control::hosts::HostName = alloc::format!("{scheme}{at}/{own}").parse()?;
        let service = name.to_string();
        if service.len() > SERVICE_BYTES_MAX {
            return Err(SeedError::HostTooLong(at.into()));
        }
        Ok(Self { service, ..self.clone() })
    }

    /// The end point's protocol.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The node that the receiver belongs to.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// For a message or a file. At most [`SEED_BYTES_MAX`] bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEAD_BYTES + self.service.len() + CHECKSUM_BYTES);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&(self.service.len() as u16).to_le_bytes());
        bytes.extend_from_slice(&self.node.0.to_le_bytes());
        bytes.extend_from_slice(&self.token.0);
        bytes.extend_from_slice(&self.kind.to_bytes());
        bytes.extend_from_slice(self.service.as_bytes());
        bytes.extend_from_slice(&crc32fast::hash(&bytes).to_le_bytes());
        bytes
    }

    /// Parses an untrusted seed. A well-formed seed need not be valid: the receiver decides when a
    /// sender is grown from it.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, SeedError> {
        if bytes.len() >= MAGIC.len() && bytes[..4] != MAGIC {
            return Err(SeedError::NotASeed);
        }
        if bytes.len() < HEAD_BYTES + CHECKSUM_BYTES {
            return Err(SeedError::Length(bytes.len()));
        }
        let version = u16::from_le_bytes([bytes[4], bytes[5]]);
        if version != VERSION {
            return Err(SeedError::Version(version));
        }
        let service = u16::from_le_bytes([bytes[6], bytes[7]]) as usize;
        if bytes.len() != HEAD_BYTES + service + CHECKSUM_BYTES || service > SERVICE_BYTES_MAX {
            return Err(SeedError::Length(bytes.len()));
        }
        let (content, checksum) = bytes.split_at(HEAD_BYTES + service);
        if crc32fast::hash(content).to_le_bytes() != checksum {
            return Err(SeedError::Checksum);
        }
        let mut token = Token::NONE;
        token.0.copy_from_slice(&content[16..32]);
        let (mut node, mut kind) = ([0; 8], [0; KIND_BYTES]);
        node.copy_from_slice(&content[8..16]);
        kind.copy_from_slice(&content[32..HEAD_BYTES]);
        Ok(Self {
            kind: Kind::from_bytes(kind),
            node: NodeId(u64::from_le_bytes(node)),
            token,
            service: core::str::from_utf8(&content[HEAD_BYTES..])
                .map_err(|_| SeedError::Content("name"))?
                .to_string(),
        })
    }
}

/// Hexadecimal, for a command line or a file of text.
impl fmt::Display for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for Seed {
    type Err = SeedError;

    fn from_str(text: &str) -> Result<Self, SeedError> {
        let text = text.trim();
        if text.len() > 2 * SEED_BYTES_MAX {
            return Err(SeedError::Length(text.len() / 2));
        }
        let digit =
            |(i, c): (usize, char)| c.to_digit(16).map(|d| d as u8).ok_or(SeedError::Digit(c, i));
        let digits: Vec<u8> = text.char_indices().map(digit).collect::<Result<_, _>>()?;
        if !digits.len().is_multiple_of(2) {
            return Err(SeedError::Length(digits.len() / 2));
        }
        Self::from_bytes(&digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn seed() -> Seed {
        Seed {
            kind: Kind::STREAM,
            node: NodeId(7),
            token: Token([9; 16]),
            service: "user@seeds-00000007".into(),
        }
    }

    #[test]
    fn a_seed_survives_bytes_and_text() {
        let own = Seed { kind: Kind::new(*b"lock"), ..seed() };
        assert_eq!(Seed::from_bytes(&own.to_bytes()), Ok(own));
        assert_eq!(Seed::from_bytes(&seed().to_bytes()), Ok(seed()));
        assert_eq!(seed().to_string().parse(), Ok(seed()));
        assert!(seed().to_bytes().len() <= SEED_BYTES_MAX);
    }

    #[test]
    fn each_cut_and_each_changed_byte_is_found() {
        let bytes = seed().to_bytes();
        for length in 0..bytes.len() {
            assert!(Seed::from_bytes(&bytes[..length]).is_err(), "cut to {length}");
        }
        for i in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[i] ^= 0x40;
            assert!(Seed::from_bytes(&changed).is_err(), "byte {i} changed");
        }
        let mut newer = bytes.clone();
        newer[4] += 1;
        assert_eq!(Seed::from_bytes(&newer), Err(SeedError::Version(VERSION + 1)));
        assert_eq!(
            Seed::from_bytes(b"some other file, longer than a head"),
            Err(SeedError::NotASeed)
        );
        assert_eq!("48x".parse::<Seed>(), Err(SeedError::Digit('x', 2)));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_seed_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..160)) {
            if let Ok(seed) = Seed::from_bytes(&bytes) {
                prop_assert_eq!(seed.to_bytes(), bytes);
            }
        }
    }
}
