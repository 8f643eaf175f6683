//! All settings of the library, in one table. The builder calls, the `HAMLYN_*` variables, the
//! checks and the documentation are made from it.
//!
//! A value comes from the builder, else from the environment ([`Config::from_env`]), else from the
//! default. A value that is not allowed is an error that states the allowed ones; no value is
//! clipped silently.

use crate::os::environment;
use core::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::string::{String, ToString};
use std::vec::Vec;

/// A setting that is not allowed. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name} ({variable}) is {value:?}; allowed is {allowed}")]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub struct ConfigError {
    /// The setting.
    pub name: &'static str,
    /// Its variable.
    pub variable: &'static str,
    /// The value found.
    pub value: String,
    /// The allowed values.
    pub allowed: String,
}

/// One row of the table of settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The builder call and field.
    pub name: &'static str,
    /// The environment variable.
    pub variable: &'static str,
    /// The value.
    pub value: String,
    /// The allowed values.
    pub allowed: String,
    /// Its effect.
    pub meaning: &'static str,
}

/// The way in which a receiver waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub enum WaitMode {
    /// Polls always: the shortest latency, at the cost of a whole core.
    Polled,
    /// Polls, then yields, then sleeps.
    Adaptive,
    /// Sleeps at once if there is nothing to receive.
    Blocking,
}

/// The thread that accepts connections and watches for deaths while the application makes no calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub enum Housekeeping {
    /// A thread of the library's, asleep between events.
    Thread,
    /// The application's own event loop.
    Application,
}

/// Whether links to other hosts may go over a fabric whose hosts are trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub enum Fabric {
    /// Never: always TLS.
    Off,
    /// Over libfabric if the other host asks for it, too; else TLS.
    Trusted,
}

/// Other hosts, by their proven identity: the first name in their certificate, or `secret`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostNames(pub Vec<String>);

impl From<Vec<String>> for HostNames {
    fn from(names: Vec<String>) -> Self {
        Self(names)
    }
}

/// The transport that `hamlyn://` names use if the service is on this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub enum Local {
    /// Shared memory, if the process that has proved its node over TLS serves the same name on this
    /// host, too, and admits this process; else TLS.
    Ring,
    /// TLS, as to any other host.
    Tls,
}

/// The directory for services of other hosts whose names contain no address (`hamlyn://service`).
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub enum ServiceDirectory {
    /// A file with lines `service host:port ..`; its path is absolute.
    File(PathBuf),
    /// SRV records of the DNS (RFC 2782), at `_service._tcp.domain`. As text (RFC 4501) `dns:domain`,
    /// or `dns://server:port/domain`.
    Dns {
        /// The domain, without a dot at its end.
        domain: String,
        /// The name server to ask, also for the hosts' addresses; `None`: the system's own name
        /// servers (`/etc/resolv.conf`).
        server: Option<SocketAddr>,
    },
}

impl From<PathBuf> for ServiceDirectory {
    fn from(path: PathBuf) -> Self {
        Self::File(path)
    }
}

impl From<&std::path::Path> for ServiceDirectory {
    fn from(path: &std::path::Path) -> Self {
        Self::File(path.into())
    }
}

impl core::fmt::Display for ServiceDirectory {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Dns { domain, server: None } => write!(f, "dns:{domain}"),
            Self::Dns { domain, server: Some(server) } => write!(f, "dns://{server}/{domain}"),
        }
    }
}

/// The treatment of a peer whose user cannot be known because it is in another user namespace.
#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub enum AdmitUnknown {
    /// Refused.
    Never,
    /// Admitted if the permissions of the service's socket let it through.
    Permissions,
    /// Admitted if it shows this token, which both sides have been configured with.
    Token(String),
}

impl core::fmt::Debug for AdmitUnknown {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Never => "never",
            Self::Permissions => "permissions",
            Self::Token(_) => "token:..",
        })
    }
}

pub use crate::wire::TOKEN_BYTES_MAX;

/// A type of setting: parses it, states the allowed values, prints it.
trait SettingValue: Sized {
    type Allowed;
    fn parse(text: &str) -> Option<Self>;
    fn is_allowed(&self, _: &Self::Allowed) -> bool {
        true
    }
    fn allowed(allowed: &Self::Allowed) -> String;
    fn show(&self) -> String;
}

/// The allowed whole numbers.
struct Whole {
    min: u64,
    max: u64,
    /// Powers of two only.
    power: bool,
    /// Zero is allowed as well: it means "off" or "never".
    zero: bool,
}

const fn from(min: u64, max: u64) -> Whole {
    Whole { min, max, power: false, zero: false }
}
const fn off_or(min: u64, max: u64) -> Whole {
    Whole { min, max, power: false, zero: true }
}
const fn power(min: u64, max: u64) -> Whole {
    Whole { min, max, power: true, zero: false }
}
const fn off_or_power(min: u64, max: u64) -> Whole {
    Whole { min, max, power: true, zero: true }
}

/// `64K`, `1M`, `2G` are powers of 1024.
fn parse_number(text: &str) -> Option<u64> {
    let text = text.trim();
    let (digits, unit) = match text.as_bytes().last()? {
        b'k' | b'K' => (&text[..text.len() - 1], 1 << 10),
        b'm' | b'M' => (&text[..text.len() - 1], 1 << 20),
        b'g' | b'G' => (&text[..text.len() - 1], 1 << 30),
        _ => (text, 1),
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

macro_rules! number {
    ($type:ty) => {
        impl SettingValue for $type {
            type Allowed = Whole;
            fn parse(text: &str) -> Option<Self> {
                parse_number(text)?.try_into().ok()
            }
            fn is_allowed(&self, allowed: &Whole) -> bool {
                let value = *self as u64;
                (value == 0 && allowed.zero)
                    || ((allowed.min..=allowed.max).contains(&value)
                        && (!allowed.power || value.is_power_of_two()))
            }
            fn allowed(allowed: &Whole) -> String {
                let zero = if allowed.zero { "0, or " } else { "" };
                let kind = if allowed.power { "a power of two" } else { "a whole number" };
                std::format!("{zero}{kind} from {} to {}", allowed.min, allowed.max)
            }
            fn show(&self) -> String {
                self.to_string()
            }
        }
    };
}
number!(u32);
number!(u64);

impl SettingValue for bool {
    type Allowed = ();
    fn parse(text: &str) -> Option<Self> {
        match text.trim().to_ascii_lowercase().as_str() {
            "1" | "yes" | "true" | "on" => Some(true),
            "0" | "no" | "false" | "off" => Some(false),
            _ => None,
        }
    }
    fn allowed(_: &()) -> String {
        "yes or no".into()
    }
    fn show(&self) -> String {
        if *self { "yes" } else { "no" }.into()
    }
}

/// Empty text is no value.
impl<T: SettingValue<Allowed = ()>> SettingValue for Option<T> {
    type Allowed = ();
    fn parse(text: &str) -> Option<Self> {
        if text.is_empty() { Some(None) } else { T::parse(text).map(Some) }
    }
    fn is_allowed(&self, _: &()) -> bool {
        self.as_ref().is_none_or(|value| value.is_allowed(&()))
    }
    fn allowed(_: &()) -> String {
        T::allowed(&())
    }
    fn show(&self) -> String {
        self.as_ref().map_or(String::new(), T::show)
    }
}

impl SettingValue for SocketAddr {
    type Allowed = ();
    fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }
    fn allowed(_: &()) -> String {
        "an address and a port, such as 192.0.2.1:7000 or [::]:7000".into()
    }
    fn show(&self) -> String {
        self.to_string()
    }
}

impl SettingValue for PathBuf {
    type Allowed = ();
    fn parse(text: &str) -> Option<Self> {
        Some(text.into())
    }
    fn is_allowed(&self, _: &()) -> bool {
        self.is_absolute()
    }
    fn allowed(_: &()) -> String {
        "an absolute path".into()
    }
    fn show(&self) -> String {
        self.display().to_string()
    }
}

macro_rules! choice {
    ($type:ident: $($variant:ident = $word:literal),+) => {
        impl SettingValue for $type {
            type Allowed = ();
            fn parse(text: &str) -> Option<Self> {
                match text.trim() { $($word => Some(Self::$variant),)+ _ => None }
            }
            fn allowed(_: &()) -> String {
                [$($word),+].join(" or ")
            }
            fn show(&self) -> String {
                match self { $(Self::$variant => $word),+ }.into()
            }
        }
    };
}
choice!(WaitMode: Polled = "polled", Adaptive = "adaptive", Blocking = "blocking");
choice!(Housekeeping: Thread = "thread", Application = "application");
choice!(Fabric: Off = "off", Trusted = "trusted");
choice!(Local: Ring = "ring", Tls = "tls");

/// Longest name of a provider, in bytes.
const PROVIDER_BYTES_MAX: usize = 64;

/// A provider's name.
impl SettingValue for String {
    type Allowed = ();
    fn parse(text: &str) -> Option<Self> {
        Some(text.into())
    }
    fn is_allowed(&self, _: &()) -> bool {
        let is_known = |byte: u8| byte.is_ascii_alphanumeric() || b";_-".contains(&byte);
        (1..=PROVIDER_BYTES_MAX).contains(&self.len()) && self.bytes().all(is_known)
    }
    fn allowed(_: &()) -> String {
        std::format!("1 to {PROVIDER_BYTES_MAX} of a-z A-Z 0-9 ; _ -, such as verbs;ofi_rxm")
    }
    fn show(&self) -> String {
        self.clone()
    }
}

/// The limits of a list of host names: the number of names, and the bytes of one, which are those
/// of a certificate.
const HOST_NAMES_MAX: usize = 64;
const IDENTITY_BYTES_MAX: usize = 253;

impl SettingValue for HostNames {
    type Allowed = ();
    fn parse(text: &str) -> Option<Self> {
        let names = text.split(',').map(|name| name.trim().into());
        Some(Self(if text.trim().is_empty() { Vec::new() } else { names.collect() }))
    }
    fn is_allowed(&self, _: &()) -> bool {
        // A name that no host can have would silently admit no host.
        let is_name = |name: &String| {
            name.parse::<IpAddr>().is_err()
                && (1..=IDENTITY_BYTES_MAX).contains(&name.len())
                && name.chars().all(|c| !c.is_control() && !c.is_whitespace() && c != ',')
        };
        self.0.len() <= HOST_NAMES_MAX && self.0.iter().all(is_name)
    }
    fn allowed(_: &()) -> String {
        std::format!(
            "up to {HOST_NAMES_MAX} DNS names of certificates (the first of each), or secret, with \
             commas between; no addresses"
        )
    }
    fn show(&self) -> String {
        self.0.join(",")
    }
}

/// Port of a name server (RFC 1035).
const DNS_PORT: u16 = 53;
/// Longest name in the DNS, in bytes (RFC 1035), as text without the dot at its end.
const DNS_NAME_BYTES_MAX: usize = 253;

impl SettingValue for ServiceDirectory {
    type Allowed = ();
    fn parse(text: &str) -> Option<Self> {
        let Some(rest) = text.strip_prefix("dns:") else {
            return Some(Self::File(text.into()));
        };
        let (server, domain) = match rest.strip_prefix("//") {
            Some(rest) => {
                let (server, domain) = rest.split_once('/')?;
                let without_port = || {
                    let address = server.strip_prefix('[').and_then(|s| s.strip_suffix(']'));
                    let address = match address {
                        Some(address) => address.parse::<core::net::Ipv6Addr>().ok()?.into(),
                        None => server.parse::<core::net::Ipv4Addr>().ok()?.into(),
                    };
                    Some(SocketAddr::new(address, DNS_PORT))
                };
                (Some(server.parse().ok().or_else(without_port)?), domain)
            }
            None => (None, rest),
        };
        let domain = domain.strip_suffix('.').unwrap_or(domain).into();
        Some(Self::Dns { domain, server })
    }
    fn is_allowed(&self, _: &()) -> bool {
        match self {
            Self::File(path) => path.is_absolute(),
            Self::Dns { domain, server } => {
                let known = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
                let is_label = |l: &str| (1..=63).contains(&l.len()) && l.bytes().all(known);
                domain.len() <= DNS_NAME_BYTES_MAX
                    && domain.split('.').all(is_label)
                    && server.is_none_or(|server| server.port() != 0)
            }
        }
    }
    fn allowed(_: &()) -> String {
        "an absolute path, or dns:domain, or dns://address:port/domain".into()
    }
    fn show(&self) -> String {
        self.to_string()
    }
}

impl SettingValue for AdmitUnknown {
    type Allowed = ();
    fn parse(text: &str) -> Option<Self> {
        match text {
            "never" => Some(Self::Never),
            "permissions" => Some(Self::Permissions),
            _ => text.strip_prefix("token:").map(|token| Self::Token(token.into())),
        }
    }
    fn is_allowed(&self, _: &()) -> bool {
        match self {
            Self::Token(token) => (8..=TOKEN_BYTES_MAX).contains(&token.len()),
            _ => true,
        }
    }
    fn allowed(_: &()) -> String {
        std::format!("never or permissions or token:, and 8 to {TOKEN_BYTES_MAX} bytes")
    }
    fn show(&self) -> String {
        std::format!("{self:?}")
    }
}

/// The argument of a builder call: the setting's own type, or the simpler one given with it.
macro_rules! argument {
    ($type:ty) => {
        $type
    };
    ($type:ty, $from:ty) => {
        $from
    };
}

macro_rules! settings {
    ($($name:ident: $type:ty $(, from $from:ty)? = $default:expr, $variable:literal, $allowed:expr, $meaning:literal;)+) => {
        /// Every setting. Fields are read; builder calls of the same names set them.
        ///
        /// ```
        /// use hamlyn::Config;
        /// use hamlyn::config::WaitMode;
        ///
        /// // The builder calls override the environment.
        /// let config = Config::from_env()?.ring_bytes(64u32 << 10).wait_mode(WaitMode::Blocking);
        /// assert_eq!(config.ring_bytes, 65536);
        /// // A value that is not allowed is an error that states the allowed ones, here or when a
        /// // node is made with it.
        /// let error = config.ring_bytes(1000u32).validate().unwrap_err();
        /// assert!(error.to_string().contains("HAMLYN_RING_BYTES"), "{error}");
        /// # Ok::<(), hamlyn::config::ConfigError>(())
        /// ```
        #[derive(Clone, Debug, PartialEq)]
        #[non_exhaustive]
        pub struct Config {
            $(#[doc = $meaning] #[doc = concat!("\n\nVariable: `", $variable, "`.")] pub $name: $type,)+
        }

        impl Default for Config {
            fn default() -> Self {
                Self { $($name: $default,)+ }
            }
        }

        impl Config {
            $(#[doc = $meaning]
            pub fn $name(mut self, value: impl Into<argument!($type $(, $from)?)>) -> Self {
                let value: argument!($type $(, $from)?) = value.into();
                self.$name = value.into();
                self
            })+

            /// Defaults, replaced by the values that `lookup` returns for the variables.
            pub fn from_lookup(
                mut lookup: impl FnMut(&str) -> Option<String>,
            ) -> Result<Self, ConfigError> {
                let mut config = Self::default();
                $(if let Some(text) = lookup($variable) {
                    let value = <$type as SettingValue>::parse(&text).filter(|value| value.is_allowed(&$allowed));
                    config.$name = value.ok_or_else(|| ConfigError {
                        name: stringify!($name),
                        variable: $variable,
                        value: text,
                        allowed: <$type as SettingValue>::allowed(&$allowed),
                    })?;
                })+
                Ok(config)
            }

            /// Refuses the first value that is not allowed.
            pub fn validate(&self) -> Result<(), ConfigError> {
                $(if !self.$name.is_allowed(&$allowed) {
                    return Err(ConfigError {
                        name: stringify!($name),
                        variable: $variable,
                        value: self.$name.show(),
                        allowed: <$type as SettingValue>::allowed(&$allowed),
                    });
                })+
                Ok(())
            }

            /// The table of settings, with this configuration's values.
            ///
            /// ```
            /// use hamlyn::Config;
            ///
            /// // Replace this by the program's own source of settings.
            /// let said = |variable: &str| (variable == "HAMLYN_SLOTS_MAX").then(|| "16".into());
            /// let config = Config::from_lookup(said)?;
            /// let settings = config.settings();
            /// let slots = settings.iter().find(|setting| setting.name == "slots_max").unwrap();
            /// assert_eq!((&*slots.value, slots.variable), ("16", "HAMLYN_SLOTS_MAX"));
            /// # Ok::<(), hamlyn::config::ConfigError>(())
            /// ```
            pub fn settings(&self) -> Vec<Setting> {
                std::vec![$(Setting {
                    name: stringify!($name),
                    variable: $variable,
                    value: self.$name.show(),
                    allowed: <$type as SettingValue>::allowed(&$allowed),
                    meaning: $meaning,
                }),+]
            }
        }
    };
}

settings! {
    dir: Option<PathBuf>, from PathBuf = None, "HAMLYN_DIR", (),
        "Directory of this user's own services; if not set, `$XDG_RUNTIME_DIR/hamlyn`, else a directory of mode 0700 in /tmp.";
    shared_dir: PathBuf = "/run/hamlyn".into(), "HAMLYN_SHARED_DIR", (),
        "Directory of services for other users; `hamlyn setup` makes it.";
    ring_bytes: u32 = 32 << 10, "HAMLYN_RING_BYTES", power(512, 1 << 30),
        "Bytes of the ring of a new link that this process writes; small, so that a link is cheap and stays in cache.";
    bulk_ring_bytes: u32 = 4 << 20, "HAMLYN_BULK_RING_BYTES", off_or_power(4096, 1 << 30),
        "Bytes of the ring that is added to a link, one direction, when large copies begin; 0: never. Smaller than the caches of one core, it is slower.";
    peer_ring_bytes_max: u32 = 4 << 20, "HAMLYN_PEER_RING_BYTES_MAX", power(4096, 1 << 30),
        "Most bytes of a ring, bulk rings included, that a peer writes; `ring_bytes` and `bulk_ring_bytes`, where they are more.";
    bulk_after_bytes: u64 = 256 << 10, "HAMLYN_BULK_AFTER_BYTES", from(0, u64::MAX),
        "Bytes sent in packets of more than one line before a bulk ring is asked for.";
    packet_bytes: u32 = 16 << 10, "HAMLYN_PACKET_BYTES", from(64, 1 << 28),
        "Most data bytes of a packet; a ring lowers it to a quarter of its own size.";
    work_queue_entries: u32 = 63, "HAMLYN_WORK_QUEUE_ENTRIES", from(1, 65_535),
        "Entries of a terminus's work queue.";
    send_buffers_max: u32 = 8, "HAMLYN_SEND_BUFFERS_MAX", from(1, 256),
        "Send buffer areas of a terminus.";
    wait_mode: WaitMode = WaitMode::Adaptive, "HAMLYN_WAIT_MODE", (),
        "How a receiver waits: looking, looking and then asleep, or asleep at once.";
    spin_ns: u64 = 50_000, "HAMLYN_SPIN_NS", from(0, 1_000_000_000),
        "Nanoseconds of looking before the processor is given to others.";
    yield_count: u32 = 4, "HAMLYN_YIELD_COUNT", from(0, 1_000_000),
        "Times that the processor is given to others before sleeping.";
    packets_per_turn: u32 = 64, "HAMLYN_PACKETS_PER_TURN", from(1, 65_536),
        "Most packets taken from one link, refused ones included, before the next link's turn.";
    links_max: u32 = 4096, "HAMLYN_LINKS_MAX", from(1, 65_535),
        "Most links of this process.";
    areas_max: u32 = 4096, "HAMLYN_AREAS_MAX", from(1, 1 << 20),
        "Most message areas of this process.";
    area_bytes_max: u64 = 1 << 40, "HAMLYN_AREA_BYTES_MAX", from(1, 1 << 46),
        "Most bytes of all message areas of this process together.";
    aperture_bytes_max: u64 = 1 << 34, "HAMLYN_APERTURE_BYTES_MAX", off_or(4096, 1 << 46),
        "Most bytes that this process exports as apertures, revoked ones that their holder still has included; 0: none.";
    aperture_user_bytes_max: u64 = 1 << 32, "HAMLYN_APERTURE_USER_BYTES_MAX", off_or(4096, 1 << 46),
        "Most bytes that this process exports as apertures to holders of one user, revoked ones that a holder still has included; 0: none.";
    aperture_link_bytes_max: u64 = 1 << 30, "HAMLYN_APERTURE_LINK_BYTES_MAX", off_or(4096, 1 << 46),
        "Most bytes that this process exports as apertures to the holder at the other end of one link; 0: none.";
    aperture_map_max: u64 = 1 << 30, "HAMLYN_APERTURE_MAP_MAX", off_or(4096, 1 << 46),
        "Most bytes of apertures that this process holds for the owner at the other end of one link; 0: none.";
    apertures_of_others: bool = false, "HAMLYN_APERTURES_OF_OTHERS", (),
        "Share read-write apertures with processes of other users, too: either end can then stop the other (see SECURITY.md).";
    apertures_per_link_max: u32 = 64, "HAMLYN_APERTURES_PER_LINK_MAX", from(1, 256),
        "Most apertures of one link that this process exports, and most that it holds.";
    aperture_stream_bytes_min: u64 = 4 << 20, "HAMLYN_APERTURE_STREAM_BYTES_MIN", from(1, 1 << 46),
        "Fewest bytes of the aperture that a stream's long records go through, whatever its receiver asks for: one that fits into the caches of one core is slower than the link.";
    apertures_per_user_max: u32 = 2048, "HAMLYN_APERTURES_PER_USER_MAX", from(1, 1 << 20),
        "Most apertures that this process holds for the owners of one user, over all links.";
    slots_max: u32 = 65_536, "HAMLYN_SLOTS_MAX", from(1, 1 << 24),
        "Most slots of this process.";
    connections_per_user_max: u32 = 2048, "HAMLYN_CONNECTIONS_PER_USER_MAX", from(1, 1 << 20),
        "Most connections that this process accepts from one user, those not yet agreed included.";
    bytes_per_user_max: u64 = 4 << 30, "HAMLYN_BYTES_PER_USER_MAX", from(8 << 10, 1 << 46),
        "Most bytes of rings and apertures that this process maps for links which one user asked for.";
    handshake_timeout_ms: u32 = 5000, "HAMLYN_HANDSHAKE_TIMEOUT_MS", from(1, 3_600_000),
        "Milliseconds for each step of a peer that connects; then it is dropped.";
    half_open_max: u32 = 256, "HAMLYN_HALF_OPEN_MAX", from(1, 1 << 20),
        "Most connections that have not yet said what they want; beyond, the oldest of the user who has most is dropped.";
    wrong_keys_max: u32 = 4096, "HAMLYN_WRONG_KEYS_MAX", from(1, u32::MAX as u64),
        "Wrong keys after which a link is closed; one is forgiven for each 64 KiB accepted.";
    refusals_per_second_max: u32 = 1_000_000, "HAMLYN_REFUSALS_PER_SECOND_MAX", off_or(1, u32::MAX as u64),
        "Refused packets a second above which a link is closed; 0: no limit. Of packets with revoked tickets, 64 count as one.";
    watchdog_ms: u32 = 0, "HAMLYN_WATCHDOG_MS", off_or(1, 86_400_000),
        "Milliseconds without a call of the application after which whatever runs its interface for it discards; 0: off.";
    huge_pages: bool = false, "HAMLYN_HUGE_PAGES", (),
        "Asks for huge pages for message areas; what came of it is reported.";
    mlock: bool = false, "HAMLYN_MLOCK", (),
        "Asks for message areas to be wired down; what came of it is reported.";
    undumpable: bool = false, "HAMLYN_UNDUMPABLE", (),
        "Denies ptrace and core dumps to other processes of this user.";
    housekeeping: Housekeeping = Housekeeping::Thread, "HAMLYN_HOUSEKEEPING", (),
        "Who accepts connections and watches for deaths: a thread of the library, or the application's event loop; with that there are no other hosts, which need a thread.";
    wait_for_names: bool = true, "HAMLYN_WAIT_FOR_NAMES", (),
        "Wait for a name that nobody serves yet, as long as whoever connects waits at all; no: it is an error at once.";
    listen: Option<SocketAddr>, from SocketAddr = None, "HAMLYN_LISTEN", (),
        "Address and port at which other hosts connect to this process's services; if not set, nothing listens.";
    secret: Option<PathBuf>, from PathBuf = None, "HAMLYN_SECRET", (),
        "File with the secret that this process and the other hosts have: 64 hexadecimal digits, for its owner alone to read.";
    certificate: Option<PathBuf>, from PathBuf = None, "HAMLYN_CERTIFICATE", (),
        "File with this host's certificate, and those that lead from it to a trusted one (PEM).";
    certificate_key: Option<PathBuf>, from PathBuf = None, "HAMLYN_CERTIFICATE_KEY", (),
        "File with the private key of that certificate (PEM).";
    trusted: Option<PathBuf>, from PathBuf = None, "HAMLYN_TRUSTED", (),
        "File with the certificates that other hosts' must lead to (PEM).";
    directory: Option<ServiceDirectory>, from ServiceDirectory = None, "HAMLYN_DIRECTORY", (),
        "Where services of other hosts are looked up whose names say no place: a file with lines `service host:port ..`; or, with the feature `dns`, SRV records at `_service._tcp.domain`, asked for at one name server, or at those of `/etc/resolv.conf`.";
    links_from: HostNames, from Vec<String> = HostNames::default(), "HAMLYN_LINKS_FROM", (),
        "Other hosts that may connect to services that are for the same user or a group (`Access`), beside those that have the same name in their certificate, or the same secret: by the first name in their certificate; `secret`: those that have its secret and no certificate; if not set, none.";
    figures_to: HostNames, from Vec<String> = HostNames::default(), "HAMLYN_FIGURES_TO", (),
        "Other hosts that are told what this process counts (`hamlyn stat`, `top` and `why` of a `hamlyn://` name), by the first name in their certificate; `secret`: those that have its secret and no certificate; if not set, none.";
    local: Local = Local::Ring, "HAMLYN_LOCAL", (),
        "What a `hamlyn://` name leads to whose address is this host's: a ring, where the process that has proved over TLS which node it is serves the same local name and lets this one in, else TLS; or TLS always.";
    host_timeout_ms: u32 = 10_000, "HAMLYN_HOST_TIMEOUT_MS", from(2000, 3_600_000),
        "Milliseconds after which another host that does not answer is taken for dead.";
    rails: u32 = 1, "HAMLYN_RAILS", from(1, 8),
        "Connections (over libfabric: end points, each beside a connection) over which one link to another host is spread: as many as the smaller of both ends' numbers says. Each goes to the next of the addresses that the host's name, or the directory, has.";
    rail_bytes: u32 = 1 << 20, "HAMLYN_RAIL_BYTES", power(64 << 10, 1 << 30),
        "Of a link with several rails: bytes that may be on their way, or wait at their receiver for others before them; their sender keeps as many, to send them again. The smaller of both ends' numbers counts, each way.";
    fabric: Fabric = Fabric::Off, "HAMLYN_FABRIC", (),
        "Links to other hosts over libfabric, where the other host asks for it, too: for a network on which every host is trusted (feature `libfabric`); else TLS.";
    fabric_provider: Option<String>, from String = None, "HAMLYN_FABRIC_PROVIDER", (),
        "libfabric's provider for it; if not set, the first that libfabric names and that will do.";
    fabric_library: Option<PathBuf>, from PathBuf = None, "HAMLYN_FABRIC_LIBRARY", (),
        "The file of libfabric; if not set, libfabric.so.1 where the system finds libraries.";
    job_timeout_ms: u32 = 60_000, "HAMLYN_JOB_TIMEOUT_MS", from(1, 86_400_000),
        "Milliseconds within which the ranks of a job have to come together when it starts.";
    pmix_library: Option<PathBuf>, from PathBuf = None, "HAMLYN_PMIX_LIBRARY", (),
        "The file of PMIx, for jobs whose launcher speaks it; if not set, libpmix.so.2 where the system finds libraries.";
    admit_unknown: AdmitUnknown = AdmitUnknown::Permissions, "HAMLYN_ADMIT_UNKNOWN", (),
        "What becomes of a peer whose user cannot be known, being of another user namespace.";
}

impl Config {
    /// Defaults, replaced by the `HAMLYN_*` variables that are set. A variable that belongs to no
    /// setting is ignored, since it may be another program's, even if it is a misspelling. (The
    /// command `hamlyn` names the ignored ones.)
    ///
    /// A program with more rights than its caller (set-user-ID, set-group-ID, file capabilities)
    /// reads no variable: it gets the defaults.
    pub fn from_env() -> Result<Self, ConfigError> {
        Self::from_lookup(environment::text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_allowed_and_each_row_reads_back() {
        let config = Config::default();
        config.validate().unwrap();
        let rows = config.settings();
        let again = Config::from_lookup(|variable| {
            let row = rows.iter().find(|row| row.variable == variable).unwrap();
            Some(row.value.clone())
        });
        assert_eq!(again.unwrap(), config);
        assert!(rows.iter().all(|row| row.variable.starts_with("HAMLYN_")));
    }

    #[test]
    fn a_bad_value_is_named_with_what_is_allowed() {
        let bad = |name: &'static str, text: &'static str| {
            Config::from_lookup(|variable| (variable == name).then(|| text.into())).unwrap_err()
        };
        let error = bad("HAMLYN_RING_BYTES", "1000");
        assert_eq!(
            error.to_string(),
            "ring_bytes (HAMLYN_RING_BYTES) is \"1000\"; \
             allowed is a power of two from 512 to 1073741824"
        );
        bad("HAMLYN_DIR", "relative");
        bad("HAMLYN_WAIT_MODE", "never");
        bad("HAMLYN_ADMIT_UNKNOWN", "token:short");
        for text in [
            "relative",
            "dns:",
            "dns:a..b",
            "dns:a b",
            "dns:.",
            "dns://a.example/b",
            "dns://1.2.3.4",
            "dns://1.2.3.4:0/a",
            "dns://1.2.3.4:65536/a",
            "dns://::1/a",
            "dns:a?type=SRV",
        ] {
            let error = bad("HAMLYN_DIRECTORY", text).to_string();
            assert!(error.contains("dns://address:port/domain"), "{error}");
        }
        bad("HAMLYN_LINKS_MAX", "99999999999999999999");
        bad("HAMLYN_LINKS_MAX", "18446744073709551615G");
        bad("HAMLYN_LINKS_MAX", "");
        assert!(Config::default().ring_bytes(513u32).validate().is_err());
        let config = Config::from_lookup(|v| (v == "HAMLYN_RING_BYTES").then(|| "64K".into()));
        assert_eq!(config.unwrap().ring_bytes, 65536);
    }

    #[test]
    fn a_directory_is_a_file_or_a_domain_of_the_dns() {
        for (text, shown) in [
            ("/etc/services of ours", "/etc/services of ours"),
            ("dns:example.org", "dns:example.org"),
            ("dns:_x.Example.org.", "dns:_x.Example.org"),
            ("dns://127.0.0.1:5353/a", "dns://127.0.0.1:5353/a"),
            ("dns://192.0.2.1/a", "dns://192.0.2.1:53/a"),
            ("dns://[2001:db8::1]/a.b", "dns://[2001:db8::1]:53/a.b"),
            ("dns://[::1]:5353/a", "dns://[::1]:5353/a"),
        ] {
            let config = Config::from_lookup(|v| (v == "HAMLYN_DIRECTORY").then(|| text.into()));
            assert_eq!(config.unwrap().directory.show(), shown);
        }
    }

    #[test]
    fn a_token_is_never_printed() {
        let config = Config::default().admit_unknown(AdmitUnknown::Token("secret-token".into()));
        assert!(!std::format!("{config:?}{:?}", config.settings()).contains("secret-token"));
    }
}
