/* With the static library. */
#include <hamlyn.h>

int main(void) {
    h_node_t *node;
    if (h_node_new(NULL, 0, &node) != H_OK) {
        return 1;
    }
    return h_close(node, 0, NULL) != H_OK;
}
