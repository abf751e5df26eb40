// Three phases, each a function of its own; `again` calls them all twice. Says what it computed.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int first(int value) { return value * 3 + 1; }
int second(int value) { return value * 5 + 2; }
int third(int value) { return value * 7 + 3; }
int never(int value) { return value + 99; }

static int compare(const void *one, const void *other) { return *(const int *)one - *(const int *)other; }

int main(int count, char **arguments) {
    int values[] = {3, 1, 2};
    int rounds = count > 1 && strcmp(arguments[1], "again") == 0 ? 2 : 1;
    for (int round = 0; round < rounds; round++) {
        printf("first %d\n", first(round));
        qsort(values, 3, sizeof(int), compare);
        printf("second %d\n", second(values[0]));
        printf("third %d\n", third(values[2]));
    }
    FILE *status = fopen("/proc/self/status", "r");
    char line[256];
    while (fgets(line, sizeof line, status))
        if (strncmp(line, "TracerPid:", 10) == 0)
            printf("%s", count > 1 && strcmp(arguments[1], "tracer") == 0 ? line : "");
    if (count > 1 && strcmp(arguments[1], "never") == 0)
        printf("never %d\n", never(1));
    return 7;
}
