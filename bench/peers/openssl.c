// OpenSSL: TLS 1.3 over TCP on 127.0.0.1, or at $PEER_ADDRESS, with Hamlyn's cipher. $PEER_SOCKET
// is a socket between the two ends, over which the responder sends its port. Sockets are
// nonblocking, and both ends poll. The responder's certificate is made for this run, and is not
// verified.

#include "peer.h"
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/socket.h>

static SSL *tls;
static uint8_t *received;

static void check(int is_good, const char *what) {
    if (!is_good) {
        unsigned long error = ERR_get_error();
        fail(what, error ? ERR_error_string(error, NULL) : strerror(errno));
    }
}

// Whether it is to be tried again; anything but that and success ends the program.
static int again(int result, const char *what) {
    if (result > 0) {
        return 0;
    }
    int error = SSL_get_error(tls, result);
    check(error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE, what);
    return 1;
}

static void send_one(const void *bytes, size_t size) {
    size_t sent = 0, part;
    while (sent < size) {
        int result = SSL_write_ex(tls, (const uint8_t *)bytes + sent, size - sent, &part);
        if (!again(result, "write")) {
            sent += part;
        }
    }
}

static void receive_one(size_t size) {
    size_t came = 0, part;
    while (came < size) {
        if (!again(SSL_read_ex(tls, received + came, size - came, &part), "read")) {
            came += part;
        }
    }
}

static void send_stream(const void *bytes, size_t size, uint64_t count) {
    for (uint64_t i = 0; i < count; i++) {
        send_one(bytes, size);
    }
}

static void receive_stream(size_t size, uint64_t count) {
    for (uint64_t i = 0; i < count; i++) {
        receive_one(size);
    }
}

static void certify(SSL_CTX *context) {
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *certificate = X509_new();
    check(key && certificate, "key");
    X509_gmtime_adj(X509_getm_notBefore(certificate), 0);
    X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
    check(X509_set_pubkey(certificate, key) && X509_sign(certificate, key, EVP_sha256()), "sign");
    check(SSL_CTX_use_certificate(context, certificate) > 0, "certificate");
    check(SSL_CTX_use_PrivateKey(context, key) > 0, "private key");
}

// A connection between the two.
static int connected(int initiates, int other) {
    const char *address = getenv("PEER_ADDRESS");
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (address && *address) {
        check(inet_pton(AF_INET, address, &at.sin_addr) == 1, "address");
    }
    socklen_t length = sizeof at;
    int tcp = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (initiates) {
        check(read(other, &at.sin_port, sizeof at.sin_port) == sizeof at.sin_port, "port");
        check(!connect(tcp, (struct sockaddr *)&at, length), "connect");
    } else {
        int listener = tcp;
        check(!bind(listener, (struct sockaddr *)&at, length) && !listen(listener, 1), "listen");
        check(!getsockname(listener, (struct sockaddr *)&at, &length), "port");
        check(write(other, &at.sin_port, sizeof at.sin_port) == sizeof at.sin_port, "port");
        tcp = accept(listener, NULL, NULL);
        check(tcp >= 0, "accept");
        close(listener);
    }
    int on = 1;
    check(!setsockopt(tcp, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on), "no delay");
    check(!fcntl(tcp, F_SETFL, O_NONBLOCK), "non-blocking");
    return tcp;
}

int main(int argc, char **argv) {
    struct plan plan = plan_of(argc, argv);
    const char *other = getenv("PEER_SOCKET");
    if (!other) {
        fail("environment", "PEER_SOCKET is wanted");
    }
    received = buffer_of(plan.size);
    SSL_CTX *context = SSL_CTX_new(plan.initiates ? TLS_client_method() : TLS_server_method());
    check(context != NULL, "context");
    SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION);
    check(SSL_CTX_set_ciphersuites(context, "TLS_AES_256_GCM_SHA384"), "cipher");
    // A buffer may have moved when its write is tried again: a part of it was sent.
    SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    // As many bytes as there are with one system call.
    SSL_CTX_set_read_ahead(context, 1);
    SSL_CTX_set_default_read_buffer_len(context, 64 << 10);
    if (!plan.initiates) {
        certify(context);
    }
    tls = SSL_new(context);
    check(tls && SSL_set_fd(tls, connected(plan.initiates, atoi(other))), "connection");
    while (again(plan.initiates ? SSL_connect(tls) : SSL_accept(tls), "handshake")) {
    }
    run_plan(&plan);
    SSL_shutdown(tls);
}
