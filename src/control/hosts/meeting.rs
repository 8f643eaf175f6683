//! Two hosts before there is a link between them: TLS, their identities, the client's request.
//!
//! ```text
//!   client: Agreeing -> Who -> Answer -> link
//!   server: Agreeing -> Wants -> (Asked) -> link
//! ```
//! Never: a step waits; a meeting lasts longer than its deadline, which its owner keeps.

use super::hello::{self, Answer, VERSION, Wants};
use super::keys::{Keys, TlsEnd};
use super::said::{RailsSecret, Said};
use crate::control::Reason;
use crate::control::identity::{Identity, is_signed, node_of};
use crate::transport::channel::Channel;
use crate::transport::fabric::OfferedPlace;
use crate::transport::path::Path;
use crate::transport::path::PathEnd;
use crate::wire::NodeId;
use serde::Deserialize;
use std::format;
use std::string::{String, ToString};
use std::vec::Vec;
use zeroize::Zeroizing;

/// This process's own data for every meeting.
#[derive(Debug)]
pub struct OwnData {
    /// Its keys.
    pub keys: Keys,
    /// Its node.
    pub identity: Identity,
    /// Most bytes of data in a packet that it accepts.
    pub packet_bytes: u32,
}

/// The proven identity of the other end.
#[derive(Clone, Debug)]
pub struct Proved {
    /// Its node.
    pub node: NodeId,
    /// The name that it has proved.
    pub identity: String,
    /// Most bytes of data in a packet that it accepts.
    pub packet_bytes: u32,
}

/// The reason why there is no link.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub enum MeetingError {
    /// One end does not trust the other's certificate for its name, or the other end does not speak
    /// TLS.
    #[error("TLS: {why}{}", advice(.0), why = .0)]
    Tls(String),
    /// The two ends have different secrets.
    #[error(
        "the other end does not have the same secret, or none: HAMLYN_SECRET is to be the same at both \
         ends, or set at neither"
    )]
    Secret,
    /// It is not the node that it claims to be.
    #[error("the other end cannot prove that it is the node that it says it is")]
    Identity,
    /// The versions are incompatible.
    #[error("the other end speaks version {}.{}, and this library {}.{}", .0.0, .0.1, VERSION.0, VERSION.1)]
    Version((u16, u16)),
    /// The name is not served there.
    #[error("nobody serves this name there")]
    NoService,
    /// The server refused.
    #[error("the server refused: {}", refused(*.0, .1))]
    Refused(Reason, String),
    /// It ended the connection.
    #[error("the other end closed the connection before the link was made{0}")]
    Gone(String),
    /// It sends over the fabric, but this end cannot.
    #[error("the other end asks for libfabric, and here that failed: {0}")]
    Fabric(String),
    /// It sent something that no honest host sends.
    #[error("the other end sent what no host sends: {0}")]
    Nonsense(&'static str),
}

/// Advice for an error of TLS. This end's own errors begin with the fault of the other's
/// certificate; errors from the other end are an alert.
fn advice(why: &str) -> &'static str {
    // The first match counts.
    let known: &[(&[&str], &str)] = &[
        (
            &["InvalidContentType"],
            "; what answers there does not speak TLS: the port is another program's",
        ),
        (
            &["NoApplicationProtocol"],
            "; what answers there speaks TLS, and is no Hamlyn, or one of another version",
        ),
        (
            &["CertificateRequired"],
            "; the other end wants a certificate: set HAMLYN_CERTIFICATE and HAMLYN_CERTIFICATE_KEY here",
        ),
        (
            &["alert: CertificateExpired"],
            "; the other end says that this end's certificate (HAMLYN_CERTIFICATE), or its authority's, has \
             ended: make a new one (`hamlyn keys DIRECTORY --certificate NAME --force`), or set the clock there",
        ),
        (
            &["alert: BadCertificate"],
            "; the other end does not take this end's certificate: most often it has connected under a name \
             or an address that is not in HAMLYN_CERTIFICATE here",
        ),
        (
            &["alert: DecryptError", "alert: UnknownCA"],
            "; the other end does not trust this end's certificate: what its HAMLYN_TRUSTED holds did not \
             sign HAMLYN_CERTIFICATE here, or HAMLYN_CERTIFICATE here is without the intermediates that lead \
             there (`cat own.pem intermediate.pem > chain.pem`; with certbot fullchain.pem)",
        ),
        (
            &["alert: UnsupportedCertificate"],
            "; the other end does not take this end's certificate (HAMLYN_CERTIFICATE) for this use: wanted \
             is one with extendedKeyUsage=serverAuth,clientAuth, or without any (`openssl x509 -in FILE -noout \
             -ext extendedKeyUsage` prints it, `hamlyn keys DIRECTORY --certificate NAME` makes one)",
        ),
        (
            &["alert: CertificateUnknown"],
            "; the other end cannot use this end's certificate (HAMLYN_CERTIFICATE): it is that of an \
             authority (CA:TRUE), or of version 1 (`openssl x509 -in FILE -noout -text` prints it, `hamlyn \
             keys DIRECTORY --certificate NAME` makes another)",
        ),
        (
            &["UnknownIssuer", "BadSignature"],
            "; the other end's certificate was not signed by an authority that this end trusts: \
             HAMLYN_TRUSTED here has to hold the authority.pem of whoever made it, and HAMLYN_CERTIFICATE \
             there the intermediates that lead to it (`cat own.pem intermediate.pem > chain.pem`; with \
             certbot fullchain.pem)",
        ),
        (
            &["allow extended key usage", "InvalidPurpose"],
            "; the other end's HAMLYN_CERTIFICATE is not for this use: wanted is one with \
             extendedKeyUsage=serverAuth,clientAuth, or without any (`hamlyn keys DIRECTORY --certificate \
             NAME` makes one)",
        ),
        (
            &["CaUsedAsEndEntity", "UnsupportedCertVersion"],
            "; the other end's HAMLYN_CERTIFICATE is that of an authority (CA:TRUE), or of version 1: wanted \
             is one of a host (`hamlyn keys DIRECTORY --certificate NAME` makes one)",
        ),
        (
            &["UnsupportedSignatureAlgorithm"],
            "; the other end's certificate, or its authority's, is signed in a way that is not checked here, \
             as with ECDSA P-521 or SHA-1: wanted is ECDSA P-256 or P-384, Ed25519, or RSA of 2048 to 8192 \
             bits (`hamlyn keys DIRECTORY --certificate NAME` makes one)",
        ),
        (
            &["not valid yet", "NotValidYet"],
            "; the other end's certificate begins later: the clock here or where it was made is wrong \
             (`timedatectl` says)",
        ),
        (
            &["sent no certificates", "NoCertificatesPresented"],
            "; the other end has no certificate, and this one wants it: set HAMLYN_CERTIFICATE, \
             HAMLYN_CERTIFICATE_KEY and HAMLYN_TRUSTED there (`hamlyn keys DIRECTORY --certificate NAME`)",
        ),
        (
            &["not valid for name", "NotValidForName"],
            "; connect under a name or an address that is in the other end's certificate, or make it one \
             that has this name, too (`hamlyn keys DIRECTORY --certificate NAME,NAME`)",
        ),
        (
            &["certificate expired", "peer certificate: Expired"],
            "; the other end's certificate, or its authority's, has ended: a new one has to be made for it \
             (`hamlyn keys DIRECTORY --certificate NAME --force`), or the clock here is wrong",
        ),
    ];
    let found = known.iter().find(|(words, _)| words.iter().any(|word| why.contains(word)));
    found.map_or("", |found| found.1)
}

/// Whether naming the files of this end helps to understand the error.
fn is_of_certificates(why: &str) -> bool {
    ["HAMLYN_CERTIFICATE", "HAMLYN_TRUSTED"].iter().any(|name| advice(why).contains(name))
}

pub(super) fn refused(reason: Reason, text: &str) -> String {
    match (reason, text) {
        (reason, "") => format!("{reason}"),
        (Reason::Application | Reason::Places | Reason::Ending, text) => text.into(),
        (reason, text) => format!("{reason}: {text}"),
    }
}

/// The result of a turn.
#[derive(Debug)]
pub enum MeetingStep {
    /// It waits for more bytes.
    Waits,
    /// At a server: the client's request, to be answered.
    Wants(Wants, Proved),
    /// At a client: accepted, with the server's greeting.
    Link(Vec<u8>, Proved),
    /// There is no link.
    Failed(MeetingError),
}

#[derive(Debug)]
enum MeetingState {
    Agreeing,
    /// A client that waits for the server's proof.
    Who,
    /// A client that has sent its request.
    Answer(Proved),
    /// A server that waits for the client's request.
    Wants,
    /// A server that has the request.
    Asked,
}

/// A connection on which both ends exchange their first messages: see the module.
#[derive(Debug)]
pub struct Meeting {
    /// The connection.
    pub channel: Channel,
    state: MeetingState,
    end: TlsEnd,
    /// A client's request.
    service: String,
    greeting: Vec<u8>,
    /// The extension of a client's request, or of a server's answer.
    pub says: Vec<u8>,
    /// The extension that the other end sent.
    pub heard: Vec<u8>,
    /// The path that a client offers for the packets in its extension.
    pub offered: Option<OfferedPlace>,
    /// A client's connection is to be a rail of an existing link: its place, and the secret that
    /// proves it.
    pub joins: Option<(u8, RailsSecret)>,
}

impl Meeting {
    /// For a connection that this process has made.
    pub fn of_client(channel: Channel, service: &str, greeting: Vec<u8>) -> Self {
        let service = service.to_string();
        Self::new(channel, TlsEnd::Client, service, greeting)
    }

    /// For a connection that it accepted.
    pub fn of_server(channel: Channel) -> Self {
        Self::new(channel, TlsEnd::Server, String::new(), Vec::new())
    }

    fn new(channel: Channel, end: TlsEnd, service: String, greeting: Vec<u8>) -> Self {
        let (says, heard, offered, joins) = (Vec::new(), Vec::new(), None, None);
        let state = MeetingState::Agreeing;
        Self { channel, state, end, service, greeting, says, heard, offered, joins }
    }

    /// Adds a client's offer of a path for the packets.
    pub fn offer(&mut self, offer: Option<(OfferedPlace, Vec<u8>)>) {
        if let Some((offered, says)) = offer {
            (self.offered, self.says) = (Some(offered), says);
        }
    }

    /// Whether the client has not yet proved itself.
    pub fn is_unproved(&self) -> bool {
        !matches!(self.state, MeetingState::Asked)
    }

    /// Whether the server has proved itself and been sent the request.
    pub fn is_told(&self) -> bool {
        matches!(self.state, MeetingState::Answer(_))
    }

    /// The thing that a client waits for, in words.
    pub fn doing(&self) -> &'static str {
        match self.state {
            MeetingState::Agreeing => "agreeing on keys with the other host",
            MeetingState::Who => "waiting for the other host's proof of who it is",
            MeetingState::Answer(_) => "waiting for the server's answer",
            MeetingState::Wants | MeetingState::Asked => "waiting for the client",
        }
    }

    /// Makes as much progress as possible.
    pub fn turn(&mut self, own: &OwnData) -> MeetingStep {
        loop {
            self.channel.receive(hello::HELLO_BYTES_MAX + 4);
            self.channel.flush();
            match self.step(own) {
                Ok(Some(step)) => return step,
                Ok(None) => {}
                Err(error) => {
                    self.channel.flush();
                    return MeetingStep::Failed(error);
                }
            }
        }
    }

    /// Takes one step; `None`: another may follow at once.
    fn step(&mut self, own: &OwnData) -> Result<Option<MeetingStep>, MeetingError> {
        match &self.state {
            MeetingState::Agreeing if !self.channel.is_open() => self.nothing_yet(own),
            MeetingState::Agreeing => {
                self.state = match self.end {
                    TlsEnd::Client => MeetingState::Who,
                    TlsEnd::Server => {
                        self.put(&who(own, &self.channel, TlsEnd::Server)?);
                        MeetingState::Wants
                    }
                };
                Ok(None)
            }
            MeetingState::Who => {
                let Some(who) = self.take::<hello::HelloIdentity>()? else {
                    return self.nothing_yet(own);
                };
                let proved = prove(own, &self.channel, self.end.other(), &who)?;
                let service = core::mem::take(&mut self.service);
                let greeting = core::mem::take(&mut self.greeting);
                let who = self::who(own, &self.channel, TlsEnd::Client)?;
                if let Some((place, secret)) = &self.joins {
                    let proof = secret.proof(TlsEnd::Client, *place, &self.channel);
                    let proof = proof.map_err(|e| MeetingError::Tls(e.to_string()))?;
                    Said::Join { link: secret.link, place: *place, proof }.put(&mut self.says);
                }
                self.put(&Wants { who, service, greeting });
                self.state = MeetingState::Answer(proved);
                Ok(None)
            }
            MeetingState::Answer(proved) => {
                let proved = proved.clone();
                match self.take::<Answer>()? {
                    None => self.nothing_yet(own),
                    Some(Answer::Yes(greeting)) => Ok(Some(MeetingStep::Link(greeting, proved))),
                    Some(Answer::NoService) => Err(MeetingError::NoService),
                    Some(Answer::No { reason, text }) => {
                        let text = crate::control::printable(&text);
                        Err(MeetingError::Refused(Reason::from_wire(reason), text))
                    }
                }
            }
            MeetingState::Wants => {
                let Some(wants) = self.take::<Wants>()? else { return self.nothing_yet(own) };
                let proved = match prove(own, &self.channel, self.end.other(), &wants.who) {
                    Ok(proved) => proved,
                    Err(error) => {
                        self.answer(&Answer::no(Reason::Identity, &error.to_string()));
                        return Err(error);
                    }
                };
                self.state = MeetingState::Asked;
                Ok(Some(MeetingStep::Wants(wants, proved)))
            }
            MeetingState::Asked => self.nothing_yet(own),
        }
    }

    /// There are too few bytes for a step: waits, unless no more will come.
    fn nothing_yet(&self, own: &OwnData) -> Result<Option<MeetingStep>, MeetingError> {
        match self.channel.ended() {
            None => Ok(Some(MeetingStep::Waits)),
            // Every host that may ask for a server's figures sees its errors, and must not see its
            // paths.
            Some(PathEnd::Nonsense(why)) => Err(MeetingError::Tls(match own.keys.files() {
                Some(files) if self.end == TlsEnd::Client && is_of_certificates(why) => {
                    format!("{why} (here {files})")
                }
                _ => why.clone(),
            })),
            Some(PathEnd::Broken(why) | PathEnd::Failed(why)) => {
                Err(MeetingError::Gone(format!(": {why}")))
            }
            Some(PathEnd::Said | PathEnd::Cut) => Err(MeetingError::Gone(String::new())),
        }
    }

    fn put<T: serde::Serialize>(&mut self, hello: &T) {
        let says = core::mem::take(&mut self.says);
        self.channel.put(&hello::to_bytes_with(hello, &says));
        self.channel.flush();
    }

    /// Sends a server's answer; bytes that do not fit leave later.
    pub fn answer(&mut self, answer: &Answer) {
        self.put(answer);
    }

    fn take<T: for<'a> Deserialize<'a>>(&mut self) -> Result<Option<T>, MeetingError> {
        let found = hello::from_bytes_with::<T>(self.channel.plain());
        let found = found.map_err(|_| MeetingError::Nonsense("a hello that cannot be read"))?;
        let Some((hello, behind, bytes)) = found else { return Ok(None) };
        self.heard = behind.to_vec();
        self.channel.take(bytes);
        Ok(Some(hello))
    }
}

fn statement(end: TlsEnd, key: &[u8; 32]) -> Zeroizing<Vec<u8>> {
    let start = b"hamlyn host 1 ";
    let mut bytes = Zeroizing::new(Vec::with_capacity(start.len() + 1 + key.len()));
    bytes.extend_from_slice(start);
    bytes.push(u8::from(end == TlsEnd::Client));
    bytes.extend_from_slice(key);
    bytes
}

fn key(channel: &Channel) -> Result<Zeroizing<[u8; 32]>, MeetingError> {
    channel.key().map_err(|e| MeetingError::Tls(e.to_string()))
}

/// An end's identity, bound to this connection.
fn who(
    own: &OwnData,
    channel: &Channel,
    end: TlsEnd,
) -> Result<hello::HelloIdentity, MeetingError> {
    let key = key(channel)?;
    let (public_key, signature) = own.identity.sign(&statement(end, &key));
    Ok(hello::HelloIdentity {
        version: VERSION,
        node: own.identity.node().0,
        public_key,
        signature: signature.to_vec(),
        proof: own.keys.proof(end, &key),
        packet_bytes: own.packet_bytes,
    })
}

/// Checks the other end's proof of its identity.
fn prove(
    own: &OwnData,
    channel: &Channel,
    end: TlsEnd,
    who: &hello::HelloIdentity,
) -> Result<Proved, MeetingError> {
    let key = key(channel)?;
    if who.version.0 != VERSION.0 {
        return Err(MeetingError::Version(who.version));
    }
    if !own.keys.is_proof(end, &key, &who.proof) {
        return Err(MeetingError::Secret);
    }
    let node = NodeId(who.node);
    if node_of(&who.public_key) != node
        || !is_signed(&who.public_key, &statement(end, &key), &who.signature)
    {
        return Err(MeetingError::Identity);
    }
    let identity = own.keys.identity(channel.tls().peer_certificates());
    Ok(Proved { node, identity, packet_bytes: who.packet_bytes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::{AlertDescription as Alert, CertificateError, Error};

    #[test]
    fn what_tls_says_of_certificates_is_told_with_what_to_do() {
        for (error, wanted) in [
            (Error::AlertReceived(Alert::CertificateRequired), "set HAMLYN_CERTIFICATE"),
            (Error::AlertReceived(Alert::CertificateExpired), "this end's certificate"),
            (Error::AlertReceived(Alert::BadCertificate), "not in HAMLYN_CERTIFICATE here"),
            (Error::AlertReceived(Alert::UnknownCA), "its HAMLYN_TRUSTED"),
            (Error::InvalidCertificate(CertificateError::UnknownIssuer), "HAMLYN_TRUSTED here"),
            (Error::InvalidCertificate(CertificateError::BadSignature), "HAMLYN_TRUSTED here"),
            (Error::InvalidCertificate(CertificateError::NotValidForName), "connect under a name"),
            (Error::InvalidCertificate(CertificateError::Expired), "has ended"),
            (Error::InvalidCertificate(CertificateError::UnknownIssuer), "the intermediates"),
            (Error::InvalidCertificate(CertificateError::NotValidYet), "the clock here"),
            (Error::InvalidCertificate(CertificateError::InvalidPurpose), "serverAuth,clientAuth"),
            (Error::AlertReceived(Alert::UnknownCA), "without the intermediates"),
            (Error::AlertReceived(Alert::UnsupportedCertificate), "serverAuth,clientAuth"),
            (Error::AlertReceived(Alert::CertificateUnknown), "CA:TRUE"),
            (Error::NoCertificatesPresented, "set HAMLYN_CERTIFICATE"),
        ] {
            let said = MeetingError::Tls(error.to_string()).to_string();
            assert!(said.contains(wanted), "{said}");
        }
        let other = MeetingError::Tls(Error::AlertReceived(Alert::BadRecordMac).to_string());
        assert_eq!(advice(&other.to_string()), "");
    }
}
