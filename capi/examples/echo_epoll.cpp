/*
 * An echo service in an epoll loop that has other things to watch, too, here a timer; and a client of
 * it. The node gives the loop one descriptor, whatever has arrived for whichever of its end points.
 */
#include <hamlyn.hpp>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace std::chrono_literals;

namespace {

constexpr auto LIMIT = 60s;

/* Answers what is there; false: somebody asked for the end. */
bool answer(hamlyn::server &server) {
    while (auto request = server.receive(0s)) {
        const auto text = request->data().text();
        const bool is_end = text == "end";
        // A reply that fails is that client's affair; it waits no longer than this, and the loop with it.
        const auto sent = text.empty() ? request->try_fail(1, "there is nothing to say again", 1s)
                                       : request->try_reply(is_end ? "" : text, 1s);
        if (!sent) {
            std::fprintf(stderr, "a client has no reply: %s\n", sent.why().text());
        }
        if (is_end) {
            return false;
        }
    }
    return true;
}

void watch(int epoll, int fd) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = fd;
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) != 0) {
        throw std::runtime_error("epoll_ctl");
    }
}

int serve() {
    hamlyn::node node;
    hamlyn::server server(node);
    server.serve("echo", hamlyn::access::same_user());

    const int epoll = epoll_create1(EPOLL_CLOEXEC);
    const int timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
    const itimerspec often = {{0, 10'000'000}, {0, 10'000'000}};
    timerfd_settime(timer, 0, &often, nullptr);
    watch(epoll, node.fd());
    watch(epoll, timer);
    unsigned long ticks = 0;
    while (answer(server)) {
        // Nothing is there: the loop may wait, unless something has come since.
        epoll_event events[2];
        const int found = epoll_wait(epoll, events, 2, node.prepare_to_wait() ? -1 : 0);
        for (int i = 0; i < found; i++) {
            std::uint64_t expired;
            if (events[i].data.fd == timer && read(timer, &expired, sizeof expired) > 0) {
                ticks += expired;
            }
        }
    }
    close(timer);
    close(epoll);
    std::printf("the loop had %lu ticks of its timer, too\n", ticks);
    server.close(LIMIT);
    node.close(LIMIT);
    return 0;
}

int ask() {
    hamlyn::node node;
    // The name is waited for, within the time limit.
    auto client = hamlyn::client::connect(node, "echo", LIMIT);
    for (int i = 0; i < 3; i++) {
        usleep(20'000);
        const std::string question = "is anybody there? " + std::to_string(i);
        const auto reply = client.call(question, LIMIT);
        if (reply.data().text() != question) {
            return 1;
        }
        std::printf("%s\n", question.c_str());
    }
    try {
        (void)client.call({}, LIMIT);
        return 1;
    } catch (const hamlyn::error &e) {
        std::printf("error %u of the service's own: %s\n", e.code(), e.what());
    }
    (void)client.call("end", LIMIT);
    client.close(LIMIT);
    return 0;
}

} // namespace

int main() {
    alarm(60);
    // A directory for names of its own, and a second process; programs that are started separately
    // need neither.
    char name[] = "/tmp/hamlyn-example-" "XX" "XX" "XX";
    if (!mkdtemp(name) || setenv("HAMLYN_DIR", name, 1) != 0) {
        return 1;
    }
    std::fflush(stdout);
    const pid_t client = fork();
    try {
        if (client == 0) {
            std::exit(ask());
        }
        serve();
    } catch (const hamlyn::error &e) {
        std::fprintf(stderr, "%s\n", e.what());
        return 1;
    }
    int status = 1;
    waitpid(client, &status, 0);
    std::filesystem::remove_all(name);
    return status != 0;
}
