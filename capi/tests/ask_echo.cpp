/*
 * The client of the echo services of docs/event-loops.md: several calls, with pauses in which their
 * loops sleep, then "end".
 */
#include <hamlyn.hpp>

#include <cstdio>
#include <string>
#include <unistd.h>

int main() {
    alarm(60);
    const auto limit = std::chrono::seconds(60);
    try {
        hamlyn::node node;
        auto client = hamlyn::client::connect(node, "echo", limit);
        for (int i = 0; i < 5; i++) {
            usleep(20 * 1000);
            const std::string text = "question " + std::to_string(i);
            if (client.call(text, limit).data().text() != text) {
                std::fprintf(stderr, "%s: another answer\n", text.c_str());
                return 1;
            }
        }
        (void)client.call("end", limit);
    } catch (const hamlyn::error &e) {
        std::fprintf(stderr, "%s\n", e.what());
        return 1;
    }
    return 0;
}
