// With the shared library, through hamlyn.hpp.
#include <hamlyn.hpp>

int main() {
    hamlyn::node node;
    node.close(std::chrono::seconds(1));
    return 0;
}
