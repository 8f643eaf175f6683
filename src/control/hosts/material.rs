//! Reads files with certificates and keys. It accepts every harmless form; for any other file the
//! error states its content, the wanted content, and the command that converts one to the other.
//!
//! OpenSSL, step and certbot write the same things in a dozen forms, and to rustls most of them are
//! "no items found". So this accepts a byte order mark, indented lines, and sections that start in
//! the last line of the one before; and the order of a chain does not matter: the certificate of
//! the key is the first.
//!
//! Never: a section that was meant to count is passed over in silence; the text of a key is left in
//! memory.

use rustls::crypto::ring::sign::any_supported_type;
use rustls::pki_types::pem::{Error, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::sign::{CertifiedKey, SigningKey};
use std::format;
use std::path::Path;
use std::string::{String, ToString};
use std::sync::Arc;
use std::vec::Vec;
use webpki::{EndEntityCert, anchor_from_trusted_cert};
use zeroize::Zeroizing;

/// The content that a file should have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WantedContent {
    /// Certificates of this host, with those that lead to its authority.
    Chain,
    /// Certificates of authorities.
    Authorities,
    /// A private key.
    Key,
}

impl WantedContent {
    fn words(self) -> &'static str {
        match self {
            Self::Chain => {
                "this host's certificate in PEM (BEGIN CERTIFICATE), with its intermediates"
            }
            Self::Authorities => "certificates of authorities in PEM (BEGIN CERTIFICATE)",
            Self::Key => KEYS,
        }
    }
}

const KEYS: &str = "a private key in PEM without a password: ECDSA P-256 or P-384, Ed25519, or RSA of 2048 to \
                    4096 bits";
const NEW_KEY: &str = "`openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out NEW`, and a \
                       certificate for it; or both by `hamlyn keys DIRECTORY --certificate NAME`";
/// The start of a section.
const BEGIN: &[u8] = b"-----BEGIN ";

/// Describes in one sentence the content of a file, the wanted content, and the command.
fn instead(holds: &str, wanted: WantedContent, command: &str) -> String {
    format!("it holds {holds}, and wanted is {}: {command}", wanted.words())
}

/// All certificates in a file; the error is a sentence.
pub fn certificates(
    bytes: &[u8],
    path: &Path,
    wanted: WantedContent,
) -> Result<Vec<CertificateDer<'static>>, String> {
    let text = lines(bytes);
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let found = found.map_err(|error| damaged(&text, path, wanted, &error))?;
    if found.is_empty() {
        return Err(explain(bytes, &text, path, wanted));
    }
    let file = path.display();
    for (i, certificate) in found.iter().enumerate() {
        if let Err(error) = anchor_from_trusted_cert(certificate) {
            let (number, of) = (i + 1, found.len());
            return Err(format!(
                "certificate {number} of {of} in it is damaged ({error}), and wanted is {}: copy it again \
                 from where it was made (`openssl x509 -in {file} -noout -text` prints the first)",
                wanted.words()
            ));
        }
    }
    match wanted {
        // Nobody checks the signature of an authority's own certificate, only its key.
        WantedContent::Authorities => match found.iter().find_map(|one| unknown_key(one)) {
            Some(algorithm) if found.iter().all(|one| unknown_key(one).is_some()) => Err(format!(
                "it holds an authority whose key is {algorithm}, which nothing here can \
                     check, and wanted is one of ECDSA P-256 or P-384, Ed25519, or RSA of 2048 to 8192 bits \
                     with SHA-256 or SHA-384: make another (`hamlyn keys DIRECTORY --certificate NAME`)"
            )),
            _ => Ok(found),
        },
        WantedContent::Chain | WantedContent::Key => Ok(found),
    }
}

/// The private key in a file; the error is a sentence.
pub fn key(bytes: &[u8], path: &Path) -> Result<PrivateKeyDer<'static>, String> {
    let text = lines(bytes);
    if is_encrypted(&text) {
        return Err(encrypted(path));
    }
    match PrivateKeyDer::from_pem_slice(&text) {
        Ok(key) => Ok(key),
        Err(Error::NoItemsFound) => Err(explain(bytes, &text, path, WantedContent::Key)),
        Err(error) => Err(damaged(&text, path, WantedContent::Key, &error)),
    }
}

/// The signer of a key; the error is a sentence.
pub fn signer(key: &PrivateKeyDer<'_>, path: &Path) -> Result<Arc<dyn SigningKey>, String> {
    any_supported_type(key).map_err(|_| {
        let der = key.secret_der();
        let file = path.display();
        match algorithm_of(der).filter(|_| !has(der, oid::EXPLICIT)) {
            Some(algorithm) => {
                instead(&format!("a key of {algorithm}"), WantedContent::Key, NEW_KEY)
            }
            None if has(der, oid::EXPLICIT) => instead(
                "a key with the parameters of its curve written out",
                WantedContent::Key,
                &format!("`openssl ec -in {file} -param_enc named_curve -out {file}.new`"),
            ),
            None => match rsa_bits(der) {
                Some(bits) => {
                    instead(&format!("an RSA key of {bits} bits"), WantedContent::Key, NEW_KEY)
                }
                None => instead(
                    "a key that is damaged, or of a kind that is not known here",
                    WantedContent::Key,
                    &format!(
                        "`openssl pkey -in {file} -check -noout` says more; a new one: {NEW_KEY}"
                    ),
                ),
            },
        }
    })
}

/// A chain with the certificate of this key as the first; the error is a sentence.
pub fn in_order(
    mut chain: Vec<CertificateDer<'static>>,
    signer: &Arc<dyn SigningKey>,
    (certificate, key): (&Path, &Path),
) -> Result<Vec<CertificateDer<'static>>, String> {
    let is_of_key = |one: &CertificateDer<'static>| {
        CertifiedKey::new(std::vec![one.clone()], signer.clone()).keys_match().is_ok()
    };
    if let Some(own) = chain.iter().position(is_of_key) {
        chain[..=own].rotate_right(1);
        return Ok(chain);
    }
    let (certificate, key) = (certificate.display(), key.display());
    let holds: Vec<String> = chain.iter().map(name_of).collect();
    // rustls cannot read such a certificate, and so finds no key in it.
    if chain.iter().any(|one| EndEntityCert::try_from(one).is_err()) {
        return Err(format!(
            "{certificate} holds a certificate of version 1 ({}), which names no host, and wanted is {}: sign \
             it with names (`openssl x509 -req .. -extfile FILE`, with the line `subjectAltName=DNS:NAME` in \
             FILE), or `hamlyn keys DIRECTORY --certificate NAME`",
            holds.join(", "),
            WantedContent::Chain.words()
        ));
    }
    Err(format!(
        "it is of no use with the certificate {certificate}: that holds {}, of which none is for this key; \
         wanted is the certificate that was made for it, with certbot fullchain.pem beside privkey.pem \
         (`openssl x509 -in {certificate} -noout -pubkey` and `openssl pkey -in {key} -pubout` print the same \
         of two that go together)",
        holds.join(", ")
    ))
}

/// The reasons why the other end would refuse this host's certificate, in sentences.
#[derive(Clone, Debug, Default)]
pub struct Unfit {
    /// As a server.
    pub server: Option<String>,
    /// As a client.
    pub client: Option<String>,
}

impl Unfit {
    /// Checks a chain whose first certificate is this host's.
    pub fn of(chain: &[CertificateDer<'_>]) -> Self {
        let Some(Ok(own)) = chain.first().map(EndEntityCert::try_from) else {
            return Self::default();
        };
        let make = "`hamlyn keys DIRECTORY --certificate NAME` makes such a one";
        let both = |why: String| Self { server: Some(why.clone()), client: Some(why) };
        if let Some(algorithm) = unknown_algorithm(&chain[0]) {
            return both(format!(
                "it holds a certificate whose key or signature is {algorithm}, which the other end cannot \
                 check, and wanted is one of ECDSA P-256 or P-384, Ed25519, or RSA of 2048 to 8192 bits with \
                 SHA-256 or SHA-384: {make}"
            ));
        }
        let now = rustls::pki_types::UnixTime::now();
        let check = |usage| own.verify_for_usage(&[], &[], &[], now, usage, None, None).err();
        let unfit = |usage, role: &str, name: &str| match check(usage)? {
            webpki::Error::CaUsedAsEndEntity => Some(format!(
                "it holds the certificate of an authority (CA:TRUE), as `openssl req -x509` makes it, and \
                 wanted is one of a host: {make}, or `openssl req -x509 .. -addext \
                 basicConstraints=critical,CA:FALSE`"
            )),
            webpki::Error::RequiredEkuNotFoundContext(_) | webpki::Error::EmptyEkuExtension => {
                Some(format!(
                    "it holds a certificate that is not for a {role} (its extendedKeyUsage is without {name}), \
                     and wanted is one with extendedKeyUsage=serverAuth,clientAuth, or without any: {make}, or \
                     openssl with `-addext extendedKeyUsage=serverAuth,clientAuth`"
                ))
            }
            _ => None,
        };
        let server = unfit(webpki::KeyUsage::server_auth(), "server", "serverAuth");
        let client = unfit(webpki::KeyUsage::client_auth(), "client", "clientAuth");
        let names_nobody = || {
            let asked = ServerName::try_from("nobody.invalid").ok()?;
            let error = own.verify_is_valid_for_subject_name(&asked).err()?;
            let webpki::Error::CertNotValidForName(context) = error else { return None };
            context.presented.is_empty().then(|| {
                format!(
                    "it holds a certificate that names no host (it has no subjectAltName, and a common name \
                     does not count), and wanted is one with the name that others connect under: {make}, or \
                     openssl with `-addext subjectAltName=DNS:NAME`"
                )
            })
        };
        Self { server: server.or_else(names_nobody), client }
    }
}

/// The text without a byte order mark and without blanks around its lines, and with a line end
/// before each section.
fn lines(bytes: &[u8]) -> Zeroizing<Vec<u8>> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    // Room for each added line end, since a buffer that grew would leave its old bytes behind.
    let mut text = Zeroizing::new(Vec::with_capacity(bytes.len() + bytes.len() / BEGIN.len() + 1));
    for line in bytes.split(|byte| matches!(byte, b'\n' | b'\r')) {
        let mut line = line.trim_ascii();
        while let Some(at) = (1..line.len()).find(|at| line[*at..].starts_with(BEGIN)) {
            text.extend_from_slice(&line[..at]);
            text.push(b'\n');
            line = &line[at..];
        }
        text.extend_from_slice(line);
        text.push(b'\n');
    }
    text
}

/// The names of a text's sections.
fn labels(text: &[u8]) -> Vec<String> {
    let begun = text.split(|byte| *byte == b'\n').filter_map(|line| line.strip_prefix(BEGIN));
    let shown = |label: &[u8]| {
        let label = String::from_utf8_lossy(&label[..label.len().min(40)]).into_owned();
        crate::control::printable(label.trim_end_matches('-'))
    };
    begun.map(shown).collect()
}

fn has(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|found| found == part)
}

fn is_encrypted(text: &[u8]) -> bool {
    has(text, b"Proc-Type: 4,ENCRYPTED") || has(text, b"-----BEGIN ENCRYPTED PRIVATE KEY")
}

fn encrypted(path: &Path) -> String {
    let file = path.display();
    let command = format!("`(umask 077; openssl pkey -in {file} -out {file}.new)` asks for it");
    instead("a private key with a password", WantedContent::Key, &command)
}

/// A sentence about a section that cannot be read.
fn damaged(text: &[u8], path: &Path, wanted: WantedContent, error: &Error) -> String {
    let section = match labels(text).first() {
        Some(label) if label.contains('\\') => {
            let file = path.display();
            let command = format!("`printf '%b\\n' \"$(cat {file})\" > {file}.new`");
            return instead("PEM with \\n in the place of its line ends", wanted, &command);
        }
        Some(label) => label.clone(),
        None => "PEM".to_string(),
    };
    let holds = match error {
        Error::MissingSectionEnd { .. } => {
            format!("a section ({section}) that was cut off: its END line is missing")
        }
        Error::IllegalSectionStart { .. } => {
            format!("a section ({section}) whose BEGIN line is not a line by itself")
        }
        _ => format!("a section ({section}) that is damaged: it is no base64"),
    };
    instead(
        &holds,
        wanted,
        "copy the file again from where it was made, whole and with its line ends",
    )
}

/// A sentence about a file that has no section of the wanted kind.
fn explain(bytes: &[u8], text: &[u8], path: &Path, wanted: WantedContent) -> String {
    let file = path.display().to_string();
    let wants_key = wanted == WantedContent::Key;
    let swapped = "the settings certificate (HAMLYN_CERTIFICATE) and certificate_key \
                   (HAMLYN_CERTIFICATE_KEY) are exchanged, or name the same file";
    let convert = |by: &str| format!("`openssl {by} -in {file} -out {file}.pem`");
    let certificate = |by: &str| if wants_key { swapped.into() } else { convert(by) };
    let (holds, command): (String, String) = match labels(text).first().map(String::as_str) {
        Some("CERTIFICATE") => ("a certificate".into(), swapped.into()),
        Some("TRUSTED CERTIFICATE" | "X509 CERTIFICATE") => {
            ("a certificate in a form of OpenSSL's own".into(), certificate("x509"))
        }
        Some("CERTIFICATE REQUEST" | "NEW CERTIFICATE REQUEST") if !wants_key => (
            "a request for a certificate, which no authority has signed yet".into(),
            format!(
                "`step ca sign {file} {file}.pem`, or `openssl x509 -req -in {file} -CA .. -CAkey .. \
                 -copy_extensions copy -out {file}.pem`"
            ),
        ),
        Some("PKCS7" | "PKCS #7 SIGNED DATA" | "CMS") => {
            ("certificates in PKCS #7".into(), certificate("pkcs7 -print_certs"))
        }
        Some("X509 CRL") => ("a list of revoked certificates".into(), copy_command(wanted)),
        Some("OPENSSH PRIVATE KEY") => ("a key of OpenSSH".into(), NEW_KEY.into()),
        Some("PUBLIC KEY" | "RSA PUBLIC KEY") => ("a public key".into(), copy_command(wanted)),
        Some("DSA PRIVATE KEY") => ("a key of DSA".into(), NEW_KEY.into()),
        Some(label) if label.ends_with("PRIVATE KEY") => ("a private key".into(), swapped.into()),
        Some(label) => (format!("PEM of another kind ({label})"), copy_command(wanted)),
        None => bare(bytes, &file, wanted),
    };
    instead(&holds, wanted, &command)
}

/// The command if no conversion is possible.
fn copy_command(wanted: WantedContent) -> String {
    match wanted {
        WantedContent::Key => NEW_KEY.into(),
        WantedContent::Chain => {
            "`hamlyn keys DIRECTORY --certificate NAME` makes one; step and certbot write it \
                          beside the key (certbot: fullchain.pem)"
                .into()
        }
        WantedContent::Authorities => {
            "`hamlyn keys DIRECTORY --certificate NAME` makes one (authority.pem); \
                                `step ca root FILE` writes that of step"
                .into()
        }
    }
}

/// The content of a file without any section, and the command.
fn bare(bytes: &[u8], file: &str, wanted: WantedContent) -> (String, String) {
    let by = |by: &str| format!("`openssl {by} -in {file} -out {file}.pem`");
    let blank = bytes.trim_ascii();
    let is_base64 = |byte: &u8| byte.is_ascii_alphanumeric() || b"+/=\r\n".contains(byte);
    if blank.is_empty() {
        return ("nothing".into(), copy_command(wanted));
    }
    if bytes.starts_with(b"\xff\xfe") || bytes.starts_with(b"\xfe\xff") || has(bytes, b"-\0-\0") {
        let command = format!("`iconv -f UTF-16 -t UTF-8 {file} > {file}.new`");
        return ("text in UTF-16, as Windows writes it".into(), command);
    }
    if blank.starts_with(b"{") {
        return ("JSON, such as a JWK of step".into(), copy_command(wanted));
    }
    if blank.starts_with(b"ssh-") || blank.starts_with(b"ecdsa-sha2-") {
        return ("a public key or certificate of OpenSSH".into(), copy_command(wanted));
    }
    if blank.len() == 64 && blank.iter().all(u8::is_ascii_hexdigit) {
        let command = "the setting secret (HAMLYN_SECRET) names such a file";
        return ("a secret, as `hamlyn keys FILE` makes it".into(), command.into());
    }
    if has(&bytes[..bytes.len().min(64)], oid::SIGNED_DATA) {
        return ("certificates in PKCS #7 (DER)".into(), by("pkcs7 -inform der -print_certs"));
    }
    if has(&bytes[..bytes.len().min(32)], oid::PBES2) {
        return ("a private key with a password (DER)".into(), by("pkey -inform der"));
    }
    if bytes.starts_with(b"\x30") && has(&bytes[..bytes.len().min(12)], b"\x02\x01\x03\x30") {
        let what = if wanted == WantedContent::Key { "-nocerts -noenc" } else { "-nokeys" };
        return ("a PKCS #12 store (.pfx, .p12)".into(), by(&format!("pkcs12 {what}")));
    }
    if anchor_from_trusted_cert(&CertificateDer::from_slice(bytes)).is_ok() {
        return ("a certificate in DER".into(), by("x509 -inform der"));
    }
    if PrivateKeyDer::try_from(bytes).is_ok() {
        return ("a private key in DER".into(), by("pkey -inform der"));
    }
    if bytes.starts_with(b"\xfe\xed\xfe\xed") {
        let command = format!(
            "`keytool -importkeystore -srckeystore {file} -deststoretype pkcs12 -destkeystore {file}.p12`, \
             then openssl pkcs12"
        );
        return ("a key store of Java".into(), command);
    }
    if blank.iter().all(is_base64) {
        let what = if wanted == WantedContent::Key { "pkey" } else { "x509" };
        let command = format!(
            "`openssl base64 -d -A -in {file} | openssl {what} -inform der -out {file}.pem`"
        );
        return ("base64 without its BEGIN and END lines".into(), command);
    }
    ("neither PEM nor DER".into(), copy_command(wanted))
}

/// The content of a file that should hold a secret and does not.
pub fn in_place_of_secret(bytes: &[u8]) -> String {
    match labels(&lines(bytes)).first() {
        Some(label) => format!("PEM ({label})"),
        None if bytes.contains(&0) => "text in UTF-16, or no text".into(),
        None => {
            let text = bytes.trim_ascii();
            let digits = text.iter().filter(|byte| byte.is_ascii_hexdigit()).count();
            format!("{} characters, of which {digits} are such digits", text.len())
        }
    }
}

/// Identifiers of algorithms and formats in DER.
mod oid {
    pub const SIGNED_DATA: &[u8] = b"\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x07\x02";
    pub const PBES2: &[u8] = b"\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x05\x0d";
    /// The field of a curve with explicit parameters.
    pub const EXPLICIT: &[u8] = b"\x06\x07\x2a\x86\x48\xce\x3d\x01\x01";
    pub const COMMON_NAME: &[u8] = b"\x06\x03\x55\x04\x03";
    /// Of keys.
    pub const KEYS: [(&[u8], &str); 9] = [
        (b"\x06\x05\x2b\x81\x04\x00\x23", "ECDSA P-521"),
        (b"\x06\x05\x2b\x81\x04\x00\x0a", "ECDSA secp256k1"),
        (b"\x06\x05\x2b\x81\x04\x00\x21", "ECDSA P-224"),
        (b"\x06\x09\x2b\x24\x03\x03\x02\x08\x01\x01", "ECDSA on a Brainpool curve"),
        (b"\x06\x03\x2b\x65\x71", "Ed448"),
        (b"\x06\x03\x2b\x65\x6e", "X25519, which signs nothing"),
        (b"\x06\x07\x2a\x86\x48\xce\x38\x04\x01", "DSA"),
        (b"\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x01\x0a", "RSA-PSS alone"),
        (b"\x06\x09\x60\x86\x48\x01\x65\x03\x04\x03", "ML-DSA"),
    ];
    /// Of signatures.
    pub const SIGNATURES: [(&[u8], &str); 4] = [
        (b"\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x01\x04", "RSA with MD5"),
        (b"\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x01\x05", "RSA with SHA-1"),
        (b"\x06\x07\x2a\x86\x48\xce\x3d\x04\x01", "ECDSA with SHA-1"),
        (b"\x06\x08\x2a\x86\x48\xce\x3d\x04\x03\x04", "ECDSA with SHA-512, as by a key of P-521"),
    ];
}

fn algorithm_of(der: &[u8]) -> Option<&'static str> {
    oid::KEYS.iter().find(|(id, _)| has(der, id)).map(|found| found.1)
}

/// The algorithm of a certificate's key or signature, if this library cannot check it.
fn unknown_algorithm(certificate: &CertificateDer<'_>) -> Option<&'static str> {
    let signed = oid::SIGNATURES.iter().find(|(id, _)| has(certificate, id));
    unknown_key(certificate).or(signed.map(|found| found.1))
}

/// The algorithm of a certificate's key, if this library cannot check its signatures.
fn unknown_key(certificate: &CertificateDer<'_>) -> Option<&'static str> {
    algorithm_of(certificate).filter(|name| *name != "RSA-PSS alone")
}

/// Bits of an RSA key: those of its modulus, the first number behind the version.
fn rsa_bits(der: &[u8]) -> Option<usize> {
    let at = (0..der.len().min(64)).find(|at| der[*at..].starts_with(b"\x02\x01\x00\x02"))? + 4;
    let (bytes, first) = match der.get(at..at + 3)? {
        [0x81, length, first] => (usize::from(*length), *first),
        [0x82, high, low] => (usize::from(*high) << 8 | usize::from(*low), *der.get(at + 3)?),
        [length @ 1..=0x7f, first, _] => (usize::from(*length), *first),
        _ => return None,
    };
    Some((bytes - usize::from(first == 0 && bytes > 0)) * 8)
}

/// The common name of a certificate's subject.
fn name_of(certificate: &CertificateDer<'_>) -> String {
    let own = EndEntityCert::try_from(certificate).map(|one| one.subject().to_vec());
    let subject = own.unwrap_or_else(|_| certificate.to_vec());
    let mut names = (0..subject.len()).filter(|at| subject[*at..].starts_with(oid::COMMON_NAME));
    let text = names.next_back().and_then(|at| {
        let at = at + oid::COMMON_NAME.len() + 1;
        let length = usize::from(*subject.get(at)?);
        subject.get(at + 1..at + 1 + length).filter(|_| length < 128)
    });
    match text {
        Some(text) => format!("CN={}", crate::control::printable(&String::from_utf8_lossy(text))),
        None => "a certificate without a common name".into(),
    }
}
