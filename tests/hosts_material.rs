//! Files with certificates and keys in the forms that OpenSSL, step and certbot write: each is
//! used, or the error names the file, its content, the expected content, and the command that makes
//! it.
#![cfg(not(miri))]

#[path = "support/mod.rs"]
mod support;

use hamlyn::control::hosts::keys::Keys;
use hamlyn::control::hosts::meeting::{Meeting, MeetingStep, OwnData};
use hamlyn::control::{Accept, Identity};
use hamlyn::node::{ConnectError, HostError};
use hamlyn::transport::channel::Channel;
use hamlyn::{Access, Config, Node};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex};
use support::{Dir, LIMIT, listening, skipped, until};

/// A directory in which OpenSSL has made an authority, an intermediate, and a host's certificate.
struct Files {
    dir: Dir,
}

/// A new key, as `openssl req` takes it.
const NEW: &str = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
const HOST: &str = "subjectAltName=DNS:localhost\n";

impl Files {
    /// `None`, which is said: there is no OpenSSL of version 3.
    fn new() -> Option<Self> {
        let said = Command::new("openssl").arg("version").output();
        let said = said.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
        if !said.as_ref().is_ok_and(|said| said.starts_with("OpenSSL 3")) {
            skipped(&format!("the command openssl of version 3 is needed, and here is {said:?}"));
            return None;
        }
        let files = Self { dir: Dir::new("material", &[]) };
        files.openssl(&format!(
            "req -x509 {NEW} -keyout ca.key -out ca.pem -subj /CN=root -days 30"
        ));
        files.signed("int", "ca", "basicConstraints=critical,CA:TRUE\n");
        files.signed("own", "int", HOST);
        files.join("chain.pem", &["own.pem", "int.pem"]);
        Some(files)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path.join(name)
    }

    /// Runs `openssl`.
    #[track_caller]
    fn openssl(&self, line: &str) {
        let mut command = Command::new("openssl");
        let output =
            command.args(line.split_whitespace()).current_dir(&self.dir.path).output().unwrap();
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// A key, and a certificate that another has signed.
    #[track_caller]
    fn signed(&self, name: &str, by: &str, extensions: &str) {
        self.write("extensions", extensions);
        self.openssl(&format!(
            "req -new {NEW} -keyout {name}.key -out {name}.csr -subj /CN={name}"
        ));
        self.sign(name, by, "-extfile extensions");
    }

    #[track_caller]
    fn sign(&self, name: &str, by: &str, how: &str) {
        self.openssl(&format!(
            "x509 -req -in {name}.csr -CA {by}.pem -CAkey {by}.key -CAcreateserial -days 20 -out \
             {name}.pem {how}"
        ));
    }

    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        std::fs::write(self.path(name), bytes).unwrap();
    }

    fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap()
    }

    fn text(&self, name: &str) -> String {
        String::from_utf8(self.read(name)).unwrap()
    }

    fn join(&self, name: &str, parts: &[&str]) {
        let parts: Vec<_> = parts.iter().map(|part| self.read(part)).collect();
        self.write(name, parts.concat());
    }

    /// The settings that name these.
    fn config(&self, [certificate, key, trusted]: [&str; 3]) -> Config {
        for name in [certificate, key, trusted] {
            let path = self.path(name);
            let mode = if path.is_dir() { 0o700 } else { 0o600 };
            std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
        }
        let (certificate, key) = (self.path(certificate), self.path(key));
        self.dir.config().certificate(certificate).certificate_key(key).trusted(self.path(trusted))
    }

    fn load(&self, files: [&str; 3]) -> Result<Keys, String> {
        Keys::load(&self.config(files)).map_err(|error| error.to_string())
    }
}

#[test]
fn forms_that_do_no_harm_are_read_and_the_order_of_a_chain_does_not_matter() {
    let Some(files) = Files::new() else { return };
    let chain = files.text("chain.pem");
    files.write("bom.pem", format!("\u{feff}{chain}"));
    files.write("crlf.pem", chain.replace('\n', "\r\n"));
    files.write("cr.pem", chain.replace('\n', "\r"));
    files.write("indented.pem", format!("    {}", chain.replace('\n', "\n    ")));
    files.write("glued.pem", chain.replace("-----\n-----", "----------"));
    files.join("issuer-first.pem", &["int.pem", "own.pem"]);
    files.join("all.pem", &["own.key", "int.pem", "own.pem"]);
    files.openssl("x509 -in own.pem -text -out text.pem");
    files.write("key-bom.key", format!("\u{feff}{}", files.text("own.key")));
    files.openssl("ec -in own.key -out sec1.key");
    files.openssl("ecparam -name prime256v1 -out parameters");
    files.join("parameters.key", &["parameters", "sec1.key"]);
    files.openssl("pkcs12 -export -in chain.pem -inkey own.key -out store.p12 -passout pass:x");
    files.openssl("pkcs12 -in store.p12 -noenc -passin pass:x -out attributes.pem");
    for certificate in [
        "chain.pem",
        "bom.pem",
        "crlf.pem",
        "cr.pem",
        "indented.pem",
        "glued.pem",
        "issuer-first.pem",
        "all.pem",
        "text.pem",
        "attributes.pem",
    ] {
        let keys = files.load([certificate, "own.key", "ca.pem"]);
        let keys = keys.unwrap_or_else(|error| panic!("{certificate}: {error}"));
        assert_eq!(keys.own_identity(), "localhost", "{certificate}");
    }
    for key in ["key-bom.key", "sec1.key", "parameters.key", "all.pem", "attributes.pem"] {
        files.load(["chain.pem", key, "ca.pem"]).unwrap_or_else(|error| panic!("{key}: {error}"));
    }
    for (kind, name) in [
        ("-algorithm EC -pkeyopt ec_paramgen_curve:P-384", "p384"),
        ("-algorithm ED25519", "ed25519"),
        ("-algorithm RSA -pkeyopt rsa_keygen_bits:2048", "rsa"),
    ] {
        files.openssl(&format!("genpkey {kind} -out {name}.key"));
        files.openssl(&format!("req -new -key {name}.key -subj /CN={name} -out {name}.csr"));
        files.write("extensions", HOST);
        files.sign(name, "ca", "-extfile extensions");
        let certificate = format!("{name}.pem");
        files.load([&certificate, &format!("{name}.key"), "ca.pem"]).unwrap();
    }
    files.openssl("rsa -in rsa.key -traditional -out pkcs1.key");
    files.load(["rsa.pem", "pkcs1.key", "ca.pem"]).unwrap();
}

/// Which of the three settings names the file.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Of {
    Certificate,
    Key,
    Trusted,
}

#[test]
fn each_file_that_cannot_be_used_is_told_with_what_is_in_it_what_is_wanted_and_the_command() {
    let Some(files) = Files::new() else { return };
    let made = |lines: &[&str]| lines.iter().for_each(|line| files.openssl(line));
    made(&[
        "x509 -in own.pem -outform der -out own.der",
        "crl2pkcs7 -nocrl -certfile chain.pem -out own.p7b",
        "crl2pkcs7 -nocrl -certfile chain.pem -outform der -out own-der.p7b",
        "pkcs12 -export -in chain.pem -inkey own.key -out own.p12 -passout pass:x",
        "x509 -in own.pem -trustout -out trusted-form.pem",
        "pkcs8 -topk8 -in own.key -out encrypted.key -passout pass:x",
        "ec -in own.key -aes256 -passout pass:x -out encrypted-sec1.key",
        "pkcs8 -topk8 -in own.key -outform der -out encrypted.der -passout pass:x",
        "pkey -in own.key -outform der -out key.der",
        "ec -in own.key -outform der -out sec1.der",
        "pkey -in own.key -pubout -out public.pem",
        "genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-521 -out p521.key",
        "ecparam -name secp521r1 -genkey -noout -out p521-sec1.key",
        "genpkey -algorithm EC -pkeyopt ec_paramgen_curve:secp256k1 -out k1.key",
        "genpkey -algorithm EC -pkeyopt ec_paramgen_curve:brainpoolP256r1 -out brainpool.key",
        "genpkey -algorithm ED448 -out ed448.key",
        "genpkey -algorithm X25519 -out x25519.key",
        "genpkey -algorithm RSA -pkeyopt rsa_keygen_bits:1024 -out rsa1024.key",
        "genpkey -algorithm RSA-PSS -pkeyopt rsa_keygen_bits:2048 -out pss.key",
        "ecparam -name prime256v1 -genkey -noout -param_enc explicit -out explicit.key",
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-521 -nodes -keyout ca521.key -out ca521.pem \
         -subj /CN=root -days 30",
    ]);
    for (name, text) in [
        (
            "openssh.key",
            "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaA==\n-----END OPENSSH PRIVATE KEY-----\n",
        ),
        ("ssh.pub", "ecdsa-sha2-nistp256-cert-v01@openssh.com AAAA user@host\n"),
        ("step.jwk", "{\"use\":\"sig\",\"kty\":\"EC\",\"crv\":\"P-256\",\"d\":\"x\"}\n"),
        ("dsa.key", "-----BEGIN DSA PRIVATE KEY-----\nMAA=\n-----END DSA PRIVATE KEY-----\n"),
        ("crl.pem", "-----BEGIN X509 CRL-----\nMAA=\n-----END X509 CRL-----\n"),
        ("other.pem", "-----BEGIN PGP MESSAGE-----\nMAA=\n-----END PGP MESSAGE-----\n"),
        ("damaged.pem", "-----BEGIN CERTIFICATE-----\nMII\u{e9}\n-----END CERTIFICATE-----\n"),
        ("nonsense.pem", "-----BEGIN CERTIFICATE-----\nMAMCAQE=\n-----END CERTIFICATE-----\n"),
        ("empty", " \n"),
        ("prose", "Ask the administrator, please.\n"),
    ] {
        files.write(name, text);
    }
    files.write("secret", "7f".repeat(32));
    files.write("java.jks", b"\xfe\xed\xfe\xed\x00\x00\x00\x02");
    let (own, key) = (files.text("own.pem"), files.text("own.key"));
    let utf16: Vec<u8> =
        format!("\u{feff}{own}").encode_utf16().flat_map(u16::to_le_bytes).collect();
    files.write("utf16.pem", utf16);
    files.write("cut.pem", &own[..own.len() / 2]);
    files.write("cut.key", &key[..key.len() - 20]);
    files.write("escaped.pem", own.trim().replace('\n', "\\n"));
    let lines: Vec<&str> = own.lines().filter(|line| !line.starts_with('-')).collect();
    files.write("base64.pem", lines.join("\n"));
    files.sign("own", "int", "");
    files.openssl("x509 -in own.pem -out version1.pem");
    std::fs::create_dir(files.path("certificates")).unwrap();

    use Of::{Certificate, Key, Trusted};
    let chain = "BEGIN CERTIFICATE";
    let keys = "a private key in PEM without a password";
    let new_key = "`openssl genpkey -algorithm EC";
    let table: &[(Of, &str, &str, &str, &str)] = &[
        (Certificate, "own.der", "a certificate in DER", chain, "openssl x509 -inform der -in "),
        (Certificate, "own.p7b", "PKCS #7", chain, "openssl pkcs7 -print_certs -in "),
        (
            Certificate,
            "own-der.p7b",
            "PKCS #7 (DER)",
            chain,
            "openssl pkcs7 -inform der -print_certs",
        ),
        (Certificate, "own.p12", "PKCS #12", chain, "openssl pkcs12 -nokeys -in "),
        (Certificate, "trusted-form.pem", "OpenSSL's own", chain, "openssl x509 -in "),
        (Certificate, "own.csr", "a request for a certificate", chain, "openssl x509 -req -in "),
        (Certificate, "own.key", "a private key", chain, "are exchanged"),
        (Certificate, "crl.pem", "revoked certificates", chain, "`hamlyn keys DIRECTORY"),
        (Certificate, "other.pem", "PGP MESSAGE", chain, "`hamlyn keys DIRECTORY"),
        (Certificate, "empty", "holds nothing", chain, "`hamlyn keys DIRECTORY"),
        (Certificate, "prose", "neither PEM nor DER", chain, "`hamlyn keys DIRECTORY"),
        (Certificate, "utf16.pem", "UTF-16", chain, "`iconv -f UTF-16 -t UTF-8 "),
        (Certificate, "cut.pem", "was cut off", chain, "copy the file again"),
        (Certificate, "damaged.pem", "is damaged", chain, "copy the file again"),
        (Certificate, "nonsense.pem", "is damaged", chain, "`openssl x509 -in "),
        (Certificate, "escaped.pem", "\\n in the place of its line ends", chain, "`printf "),
        (
            Certificate,
            "base64.pem",
            "without its BEGIN and END",
            chain,
            "`openssl base64 -d -A -in ",
        ),
        (Certificate, "ssh.pub", "OpenSSH", chain, "`hamlyn keys DIRECTORY"),
        (Key, "own.pem", "a certificate", keys, "are exchanged"),
        (Key, "own.p12", "PKCS #12", keys, "openssl pkcs12 -nocerts -noenc -in "),
        (Key, "encrypted.key", "with a password", keys, "openssl pkey -in "),
        (Key, "encrypted-sec1.key", "with a password", keys, "openssl pkey -in "),
        (Key, "encrypted.der", "with a password (DER)", keys, "openssl pkey -inform der -in "),
        (Key, "key.der", "a private key in DER", keys, "openssl pkey -inform der -in "),
        (Key, "sec1.der", "a private key in DER", keys, "openssl pkey -inform der -in "),
        (Key, "public.pem", "a public key", keys, new_key),
        (Key, "openssh.key", "a key of OpenSSH", keys, new_key),
        (Key, "ssh.pub", "OpenSSH", keys, new_key),
        (Key, "step.jwk", "a JWK of step", keys, new_key),
        (Key, "p521.key", "ECDSA P-521", "ECDSA P-256 or P-384", new_key),
        (Key, "p521-sec1.key", "ECDSA P-521", "ECDSA P-256 or P-384", new_key),
        (Key, "k1.key", "ECDSA secp256k1", keys, new_key),
        (Key, "brainpool.key", "Brainpool", keys, new_key),
        (Key, "ed448.key", "Ed448", keys, new_key),
        (Key, "x25519.key", "X25519", keys, new_key),
        (Key, "rsa1024.key", "an RSA key of 1024 bits", "RSA of 2048 to 4096 bits", new_key),
        (Key, "pss.key", "RSA-PSS", keys, new_key),
        (Key, "dsa.key", "a key of DSA", keys, new_key),
        (Key, "explicit.key", "parameters of its curve", keys, "openssl ec -in "),
        (Key, "cut.key", "was cut off", keys, "copy the file again"),
        (Key, "secret", "as `hamlyn keys FILE` makes it", keys, "HAMLYN_SECRET"),
        (Key, "java.jks", "a key store of Java", keys, "`keytool "),
        (Trusted, "own.key", "a private key", chain, "are exchanged"),
        (Trusted, "own.der", "a certificate in DER", chain, "openssl x509 -inform der -in "),
        (Trusted, "crl.pem", "revoked certificates", chain, "`step ca root FILE`"),
        (Trusted, "empty", "holds nothing", chain, "authority.pem"),
        (Trusted, "nonsense.pem", "is damaged", chain, "`openssl x509 -in "),
        (Trusted, "ca521.pem", "ECDSA P-521", "ECDSA P-256 or P-384", "`hamlyn keys DIRECTORY"),
        (Trusted, "certificates", "Is a directory", "one file", "`cat "),
        // That of certbot with the issuer alone is of another key.
        (Key, "ca.key", "CN=own", "the certificate that was made for it", "`openssl x509 -in "),
        (Key, "version1", "of version 1 (CN=own)", chain, "subjectAltName=DNS:NAME"),
    ];
    for (of, name, holds, wanted, command) in table {
        let files_of = match (of, *name) {
            (_, "version1") => ["version1.pem", "own.key", "ca.pem"],
            (Certificate, name) => [name, "own.key", "ca.pem"],
            (Key, name) => ["chain.pem", name, "ca.pem"],
            (Trusted, name) => ["chain.pem", "own.key", name],
        };
        let error =
            files.load(files_of).err().unwrap_or_else(|| panic!("{name} is taken for {of:?}"));
        let setting = match of {
            Certificate => "certificate (HAMLYN_CERTIFICATE)",
            Key => "certificate_key (HAMLYN_CERTIFICATE_KEY)",
            Trusted => "trusted (HAMLYN_TRUSTED)",
        };
        let path = files.path(files_of[*of as usize]).display().to_string();
        for part in [setting, &path, holds, "wanted", wanted, command] {
            assert!(error.contains(part), "{of:?} {name}, {part:?}: {error}");
        }
    }
}

// Many authorities' own certificates are signed with SHA-1, and nobody checks those signatures.
#[test]
fn an_authority_whose_own_signature_is_old_is_trusted_by_its_key() {
    let Some(files) = Files::new() else { return };
    files.openssl(&format!("req -x509 {NEW} -sha1 -keyout old.key -out old.pem -subj /CN=old"));
    files.signed("host", "ca", HOST);
    let config = files.config(["host.pem", "host.key", "old.pem"]);
    Keys::load(&config).map(drop).unwrap();
}

#[test]
fn a_certificate_that_the_other_end_would_refuse_is_told_at_once_with_what_it_is_for() {
    let Some(files) = Files::new() else { return };
    files.openssl(&format!("req -x509 {NEW} -keyout self.key -out self.pem -subj /CN=localhost"));
    files.signed("server-only", "ca", &format!("{HOST}extendedKeyUsage=serverAuth\n"));
    files.signed("client-only", "ca", &format!("{HOST}extendedKeyUsage=clientAuth\n"));
    files.signed("nameless", "ca", "basicConstraints=CA:FALSE\n");
    files.signed("sha1", "ca", HOST);
    files.sign("sha1", "ca", "-extfile extensions -sha1");
    let (listens, connects) = (&[true][..], &[false][..]);
    for (name, ends, holds, command) in [
        (
            "self",
            &[true, false][..],
            "of an authority (CA:TRUE)",
            "basicConstraints=critical,CA:FALSE",
        ),
        ("server-only", connects, "without clientAuth", "extendedKeyUsage=serverAuth,clientAuth"),
        ("client-only", listens, "without serverAuth", "extendedKeyUsage=serverAuth,clientAuth"),
        ("nameless", listens, "names no host", "subjectAltName=DNS:NAME"),
        ("sha1", &[true, false], "ECDSA with SHA-1", "`hamlyn keys DIRECTORY"),
    ] {
        for is_listening in [true, false] {
            let config = files.config([&format!("{name}.pem"), &format!("{name}.key"), "ca.pem"]);
            let config = if is_listening { listening(config) } else { config };
            let loaded = Keys::load(&config).map(drop).map_err(|error| error.to_string());
            if !ends.contains(&is_listening) {
                assert_eq!(loaded, Ok(()), "{name}");
                continue;
            }
            let (error, path) = (loaded.unwrap_err(), files.path(&format!("{name}.pem")));
            for part in [&*path.display().to_string(), holds, "wanted", command] {
                assert!(error.contains(part), "{name}, {part:?}: {error}");
            }
        }
    }
}

#[test]
fn a_secret_that_is_something_else_is_told_with_what_is_in_its_file() {
    let dir = Dir::new("secrets", &[]);
    let pem = "-----BEGIN PRIVATE KEY-----\nMAA=\n-----END PRIVATE KEY-----\n";
    let utf16: Vec<u8> = "7f".repeat(32).encode_utf16().flat_map(u16::to_le_bytes).collect();
    let load = |bytes: &[u8]| {
        let path = dir.path.join("secret");
        std::fs::write(&path, bytes).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        Keys::load(&dir.config().secret(path)).map(drop).map_err(|error| error.to_string())
    };
    assert_eq!(load(format!("\u{feff}{}\r\n", "7F".repeat(32)).as_bytes()), Ok(()));
    for (bytes, holds) in [
        (pem.as_bytes(), "PEM (PRIVATE KEY)"),
        (&utf16, "UTF-16"),
        (b"correct horse", "13 characters, of which 4 are such digits"),
        ("7f".repeat(16).as_bytes(), "32 characters, of which 32 are such digits"),
        (b"", "0 characters"),
    ] {
        let error = load(bytes).unwrap_err();
        let path = dir.path.join("secret").display().to_string();
        for part in ["HAMLYN_SECRET", &path, holds, "64 hexadecimal digits", "`hamlyn keys /"] {
            assert!(error.contains(part), "{part:?}: {error}");
        }
    }
}

// Which this end can know of both only by what the other says.
#[test]
fn what_the_two_ends_say_of_certificates_names_this_ends_files_and_what_to_do() {
    let Some(files) = Files::new() else { return };
    let told = Arc::<Mutex<Vec<String>>>::default();
    let to = told.clone();
    hamlyn::log::set_sink(Some(Arc::new(move |entry| to.lock().unwrap().push(entry.to_string()))));
    let node = |certificate: &str, key: &str| {
        let config = listening(files.config([certificate, key, "ca.pem"]));
        let mut node = Node::with_config(config).unwrap();
        node.serve("x", Access::SameUser, Accept::Automatic(Vec::new())).unwrap();
        let at = node.listens_at().unwrap();
        (node, at)
    };
    files.signed("server-only", "ca", &format!("{HOST}extendedKeyUsage=serverAuth\n"));
    let own = |certificate: &str| files.path(certificate).display().to_string();
    let error_of = |config: Config, at: SocketAddr| {
        let mut client = Node::with_config(config).unwrap();
        let name = format!("hamlyn://localhost:{}/x", at.port());
        match client.connect(&name, b"", LIMIT) {
            Err(ConnectError::Host { error, .. }) => match error.telling() {
                HostError::Meeting(error) => error.to_string(),
                other => panic!("{other}"),
            },
            other => panic!("{other:?}"),
        }
    };
    let holds = |text: &str, parts: &[&str]| {
        for part in parts {
            assert!(text.contains(part), "{part:?}: {text}");
        }
    };

    // A server that sends no intermediate; and a client that does not.
    let good = || files.config(["chain.pem", "own.key", "ca.pem"]);
    let (server, at) = node("own.pem", "own.key");
    let error = error_of(good(), at);
    holds(&error, &["UnknownIssuer", "the intermediates", "fullchain.pem", &own("ca.pem")]);
    drop(server);
    let (server, at) = node("chain.pem", "own.key");
    let error = error_of(files.config(["own.pem", "own.key", "ca.pem"]), at);
    holds(&error, &["UnknownCA", "without the intermediates", "fullchain.pem", &own("own.pem")]);

    // A process that serves with a certificate for servers alone does not even try to connect.
    let both = listening(files.config(["server-only.pem", "server-only.key", "ca.pem"]));
    let error = error_of(both.clone(), at);
    holds(&error, &[&own("server-only.pem"), "without clientAuth", "wanted", "hamlyn keys"]);
    // One that does hears it from the other end, which logs it.
    let own_keys = OwnData {
        keys: Keys::load(&both).unwrap(),
        identity: Identity::new().unwrap(),
        packet_bytes: 4096,
    };
    let tcp = TcpStream::connect(at).unwrap();
    tcp.set_nonblocking(true).unwrap();
    let name = "localhost".try_into().unwrap();
    let tls = rustls::ClientConnection::new(own_keys.keys.client.clone(), name).unwrap();
    let mut meeting = Meeting::of_client(Channel::new(tcp, tls.into()), "x", Vec::new());
    let mut failed = None;
    until("it is refused", || match meeting.turn(&own_keys) {
        MeetingStep::Waits => false,
        MeetingStep::Failed(error) => {
            failed = Some(error.to_string());
            true
        }
        step => panic!("{step:?}"),
    });
    let advice = "extendedKeyUsage=serverAuth,clientAuth";
    let (failed, path) = (failed.unwrap(), own("server-only.pem"));
    holds(&failed, &["UnsupportedCertificate", &path, advice, "hamlyn keys"]);
    until("the server has logged it", || {
        let told = told.lock().unwrap();
        told.iter()
            .any(|entry| entry.contains("allow extended key usage") && entry.contains(advice))
    });
    // Its own files belong to no other user.
    assert!(told.lock().unwrap().iter().all(|entry| {
        !entry.contains("allow extended key usage") || !entry.contains("HAMLYN_TRUSTED=")
    }));
    hamlyn::log::set_sink(None);
    drop(server);
}
