//! The keys of this host, and the proofs that it accepts: certificates, a secret, or both.
//!
//! ```text
//!   certificates   TLS 1.3 with a certificate at both ends, each checked against those that are
//!                  trusted; the name that the client asked for must be the server's
//!   a secret       TLS 1.3 with a certificate that proves nothing; then each end shows a code of the
//!                  secret and of a key that only the two ends of this very connection can know
//!                  (RFC 9266, 8446 7.5), the server first
//! ```
//! The code is of no use on another connection, so a man in the middle, with a connection to each
//! end, learns no code that either end would accept. But an end that gets the code can test guesses
//! of the secret against it offline; so a secret is 32 random bytes and never a memorable password.
//!
//! The bytes read of a secret or a key are wiped after use; the copies that rustls and ring make of
//! a key are theirs to wipe.
//!
//! Never: a connection is used, or learns this process's request, before the other end has proved
//! itself.

use super::key_files::{self, KeyFileError, Readers};
use super::material::{self, Unfit, WantedContent};
use crate::config::Config;
use core::fmt;
use hmac::{Hmac, KeyInit, Mac};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring::sign::any_supported_type;
use rustls::crypto::{CryptoProvider, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{
    ClientConfig, DigitallySignedStruct, RootCertStore, ServerConfig, SignatureScheme, version,
};
use sha2::{Digest, Sha256};
use std::format;
use std::io;
use std::path::{Path, PathBuf};
use std::string::{String, ToString};
use std::sync::Arc;
use std::vec::Vec;
use zeroize::{Zeroize, Zeroizing};

/// Bytes of a secret.
pub const SECRET_BYTES: usize = 32;
/// Bytes of the proof that an end has the secret.
pub const PROOF_BYTES: usize = 32;
/// The protocol's name inside TLS (ALPN). A peer with another one cannot be talked to.
const PROTOCOL: &[u8] = b"hamlyn/1";

/// An end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsEnd {
    /// It connected.
    Client,
    /// It accepted.
    Server,
}

impl TlsEnd {
    /// The opposite end.
    pub fn other(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }

    fn name(self) -> &'static [u8] {
        match self {
            Self::Client => b"client",
            Self::Server => b"server",
        }
    }
}

/// The keys of this host cannot be used. The process neither listens nor connects.
#[derive(Debug, thiserror::Error)]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub enum KeysError {
    /// There are no keys.
    #[error(
        "this process has no keys for other hosts: set secret (HAMLYN_SECRET), a file that its owner \
         alone may read, as `hamlyn keys FILE` makes it; or certificate, certificate_key and \
         trusted (HAMLYN_CERTIFICATE, ..)"
    )]
    None,
    /// A part of them is missing.
    #[error("of certificate, certificate_key and trusted, {0} is not set; they go together")]
    Missing(&'static str),
    /// A file cannot be read.
    #[error("{setting}: {} cannot be read: {error}{}", .path.display(), of_directory(.path, .error))]
    Read {
        /// The setting that names it, and its variable.
        setting: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// Other users can change a file, or a directory above it, or can read a secret.
    #[error("{setting}: {why}")]
    Open {
        /// The setting that names it, and its variable.
        setting: &'static str,
        /// The file.
        path: PathBuf,
        /// The file or directory, its owner and mode, and the command that closes it to others.
        why: String,
    },
    /// The file has other content than it should.
    #[error("{setting}: {}: {why}", .path.display())]
    Content {
        /// The setting that names it, and its variable.
        setting: &'static str,
        /// The file.
        path: PathBuf,
        /// The fault.
        why: String,
    },
    /// The keys do not match, or are of no use.
    #[error("the keys for other hosts cannot be used: {0}")]
    Unusable(String),
}

fn of_directory(path: &Path, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::IsADirectory => {
            format!("; wanted is one file (`cat {}/*.pem > FILE`)", path.display())
        }
        _ => String::new(),
    }
}

/// A single copy, wiped when it is dropped: moving it moves a pointer.
type WipedSecret = Arc<Zeroizing<[u8; SECRET_BYTES]>>;

/// The keys for connections of this process to other hosts.
#[derive(Clone)]
pub struct Keys {
    /// For connections that this process makes.
    pub client: Arc<ClientConfig>,
    /// For connections that other hosts make.
    pub server: Arc<ServerConfig>,
    secret: Option<WipedSecret>,
    has_certificates: bool,
    own_identity: String,
    /// The reason why every server would refuse this end's certificate.
    unfit: Option<String>,
    files: Option<String>,
}

impl fmt::Debug for Keys {
    // The keys are secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keys")
            .field("has_certificates", &self.has_certificates)
            .finish_non_exhaustive()
    }
}

/// The names of the settings of files, as errors show them.
const OF_SECRET: &str = "secret (HAMLYN_SECRET)";
const OF_CERTIFICATE: &str = "certificate (HAMLYN_CERTIFICATE)";
const OF_KEY: &str = "certificate_key (HAMLYN_CERTIFICATE_KEY)";
const OF_TRUSTED: &str = "trusted (HAMLYN_TRUSTED)";

/// The bytes of a file that [`key_files`](super::key_files) accepts.
fn read(
    setting: &'static str,
    path: &Path,
    readers: Readers,
) -> Result<Zeroizing<Vec<u8>>, KeysError> {
    use std::io::Read;
    let cannot = |error| KeysError::Read { setting, path: path.into(), error };
    let mut file = key_files::open(path, readers).map_err(|error| match error {
        KeyFileError::Os(error) => cannot(error),
        KeyFileError::Open(why) => KeysError::Open { setting, path: path.into(), why },
    })?;
    let about = file.metadata().map_err(cannot)?;
    // Room for its length, and for the check at its end: a buffer that grew would leave its old
    // bytes behind.
    let mut bytes = Zeroizing::new(Vec::with_capacity(about.len() as usize + 64));
    file.read_to_end(&mut bytes).map_err(cannot)?;
    Ok(bytes)
}

/// The secret in a file: 64 hexadecimal digits, perhaps with blanks around them.
fn read_secret(path: &Path) -> Result<WipedSecret, KeysError> {
    let bytes = read(OF_SECRET, path, Readers::Nobody)?;
    let digits = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&bytes).trim_ascii();
    let value = |digit: u8| (digit as char).to_digit(16).map(|value| value as u8);
    let mut made = Arc::new(Zeroizing::new([0; SECRET_BYTES]));
    let secret = Arc::get_mut(&mut made).expect("nobody else has it yet");
    let fits = digits.len() == 2 * SECRET_BYTES
        && digits.chunks_exact(2).zip(&mut **secret).all(|(pair, byte)| {
            match (value(pair[0]), value(pair[1])) {
                (Some(high), Some(low)) => {
                    *byte = high << 4 | low;
                    true
                }
                _ => false,
            }
        });
    if !fits {
        let holds = material::in_place_of_secret(&bytes);
        let why = format!(
            "it holds {holds}, and wanted is a secret of 64 hexadecimal digits: `hamlyn keys {} --force` makes one",
            path.display()
        );
        return Err(KeysError::Content { setting: OF_SECRET, path: path.into(), why });
    }
    Ok(made)
}

fn certificates(
    (setting, wanted): (&'static str, WantedContent),
    path: &Path,
) -> Result<Vec<CertificateDer<'static>>, KeysError> {
    let content = |why: String| KeysError::Content { setting, path: path.into(), why };
    let read = read(setting, path, Readers::Everybody)?;
    material::certificates(&read, path, wanted).map_err(content)
}

/// Accepts any certificate, for ends that prove themselves by a secret; it checks that the other
/// end has the certificate's key, since the connection's keys depend on that.
#[derive(Debug)]
struct Unproved(Arc<CryptoProvider>);

impl ServerCertVerifier for Unproved {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("TLS 1.2 is not spoken".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

impl Keys {
    /// Loads the keys named by the settings.
    pub fn load(config: &Config) -> Result<Self, KeysError> {
        let secret = config.secret.as_deref().map(read_secret).transpose()?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let unusable = |e: rustls::Error| KeysError::Unusable(e.to_string());
        let of_client = ClientConfig::builder_with_provider(provider.clone());
        let of_client = of_client.with_protocol_versions(&[&version::TLS13]).map_err(unusable)?;
        let of_server = ServerConfig::builder_with_provider(provider.clone());
        let of_server = of_server.with_protocol_versions(&[&version::TLS13]).map_err(unusable)?;
        let (mut own, mut unfit) = (Vec::new(), Unfit::default());
        let shown = |chain, signs| -> Arc<SingleCertAndKey> {
            Arc::new(CertifiedKey::new(chain, signs).into())
        };
        let named = (&config.certificate, &config.certificate_key, &config.trusted);
        let (mut client, mut server, has_certificates) = match named {
            (None, None, None) if secret.is_none() => return Err(KeysError::None),
            (None, None, None) => {
                let own = rcgen::generate_simple_self_signed(std::vec!["hamlyn".to_string()])
                    .map_err(|e| KeysError::Unusable(e.to_string()))?;
                let mut key = PrivateKeyDer::try_from(own.signing_key.serialize_der())
                    .map_err(|e| KeysError::Unusable(e.into()))?;
                let signs = any_supported_type(&key);
                key.zeroize();
                let chain = std::vec![own.cert.der().clone()];
                let shown = shown(chain, signs.map_err(unusable)?);
                let client = of_client
                    .dangerous()
                    .with_custom_certificate_verifier(Arc::new(Unproved(provider)))
                    .with_no_client_auth();
                let server = of_server.with_no_client_auth().with_cert_resolver(shown);
                (client, server, false)
            }
            (Some(certificate), Some(key_path), Some(trusted)) => {
                let content = |setting, path: &PathBuf| {
                    let path = path.clone();
                    move |why| KeysError::Content { setting, path, why }
                };
                let chain = certificates((OF_CERTIFICATE, WantedContent::Chain), certificate)?;
                let read = read(OF_KEY, key_path, Readers::Nobody)?;
                let of_key = || content(OF_KEY, key_path);
                let mut key = material::key(&read, key_path).map_err(of_key())?;
                let signs = material::signer(&key, key_path);
                key.zeroize();
                let signs = signs.map_err(of_key())?;
                let paths = (&**certificate, &**key_path);
                let chain = material::in_order(chain, &signs, paths).map_err(of_key())?;
                unfit = Unfit::of(&chain);
                // The other end would refuse it at each connection, with a vaguer message.
                let why = if config.listen.is_some() { &unfit.server } else { &unfit.client };
                if let Some(why) = why {
                    return Err(content(OF_CERTIFICATE, certificate)(why.clone()));
                }
                own = chain.clone();
                let shown = shown(chain, signs);
                let mut roots = RootCertStore::empty();
                for root in certificates((OF_TRUSTED, WantedContent::Authorities), trusted)? {
                    roots.add(root).map_err(|e| KeysError::Content {
                        setting: OF_TRUSTED,
                        path: trusted.clone(),
                        why: e.to_string(),
                    })?;
                }
                let roots = Arc::new(roots);
                let verifier =
                    |e: rustls::server::VerifierBuilderError| KeysError::Unusable(e.to_string());
                let of_servers =
                    WebPkiServerVerifier::builder_with_provider(roots.clone(), provider.clone())
                        .build()
                        .map_err(verifier)?;
                let of_clients = WebPkiClientVerifier::builder_with_provider(roots, provider)
                    .build()
                    .map_err(verifier)?;
                let client = of_client
                    .with_webpki_verifier(of_servers)
                    .with_client_cert_resolver(shown.clone());
                let server =
                    of_server.with_client_cert_verifier(of_clients).with_cert_resolver(shown);
                (client, server, true)
            }
            (None, ..) => return Err(KeysError::Missing(OF_CERTIFICATE)),
            (_, None, _) => return Err(KeysError::Missing(OF_KEY)),
            (.., None) => return Err(KeysError::Missing(OF_TRUSTED)),
        };
        client.alpn_protocols = std::vec![PROTOCOL.to_vec()];
        server.alpn_protocols = std::vec![PROTOCOL.to_vec()];
        // Each connection has a handshake of its own: there is nothing to steal, and nothing to
        // replay.
        client.resumption = rustls::client::Resumption::disabled();
        server.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        let own_identity = own.first().map_or_else(|| SECRET.into(), identity_of);
        let (client, server) = (Arc::new(client), Arc::new(server));
        let unfit = unfit.client.zip(config.certificate.as_ref()).map(|(why, path)| {
            KeysError::Content { setting: OF_CERTIFICATE, path: path.clone(), why }.to_string()
        });
        let files =
            config.certificate.as_ref().zip(config.trusted.as_ref()).map(|(own, trusted)| {
                let (own, trusted) = (own.display(), trusted.display());
                format!("HAMLYN_CERTIFICATE={own}, HAMLYN_TRUSTED={trusted}")
            });
        Ok(Self { client, server, secret, has_certificates, own_identity, unfit, files })
    }

    /// The paths of its certificates, from the settings.
    pub fn files(&self) -> Option<&str> {
        self.files.as_deref()
    }

    /// An error, in a sentence, if every server would refuse this end's certificate.
    pub fn check_client(&self) -> Result<(), String> {
        self.unfit.clone().map_or(Ok(()), Err)
    }

    /// The identity that other hosts see for this process.
    pub fn own_identity(&self) -> &str {
        &self.own_identity
    }

    /// The proof that `end` of the connection with this key has the secret; zeros without a secret.
    pub fn proof(&self, end: TlsEnd, key: &[u8; 32]) -> [u8; PROOF_BYTES] {
        match &self.secret {
            Some(secret) => mac(secret, end, key).finalize().into_bytes().into(),
            None => [0; PROOF_BYTES],
        }
    }

    /// Whether `proof` is the right one of `end`. Without a secret every proof is: certificates
    /// were checked.
    pub fn is_proof(&self, end: TlsEnd, key: &[u8; 32], proof: &[u8; PROOF_BYTES]) -> bool {
        self.secret.as_ref().is_none_or(|secret| mac(secret, end, key).verify_slice(proof).is_ok())
    }

    /// The identity of a host that has proved itself with these certificates, or with the secret
    /// alone.
    pub fn identity(&self, certificates: Option<&[CertificateDer<'_>]>) -> String {
        let first = certificates.filter(|_| self.has_certificates).and_then(<[_]>::first);
        first.map_or_else(|| SECRET.into(), identity_of)
    }
}

/// The identity of a host that has the secret, and no certificate.
const SECRET: &str = "secret";

/// The first DNS name in a certificate; without one, or if it is `secret`, the certificate's hash.
fn identity_of(certificate: &CertificateDer<'_>) -> String {
    let names = webpki::EndEntityCert::try_from(certificate).ok();
    match names.as_ref().and_then(|names| names.valid_dns_names().next()) {
        Some(name) if name != SECRET => name.to_string(),
        _ => {
            let hash = Sha256::digest(certificate.as_ref());
            hash[..8].iter().fold("sha256:".to_string(), |text, byte| format!("{text}{byte:02x}"))
        }
    }
}

fn mac(secret: &[u8; SECRET_BYTES], end: TlsEnd, key: &[u8; 32]) -> Hmac<Sha256> {
    let mac = Hmac::<Sha256>::new_from_slice(secret).expect("a key of any length does");
    mac.chain_update(b"hamlyn secret 1 ").chain_update(end.name()).chain_update(key)
}
