// Loads two plugins, unloads them, and loads them again; only the last time it calls their function `late`.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

int main(int count, char **arguments) {
    for (int round = 0; round < 3; round++) {
        void *plugins[2];
        for (int plugin = 0; plugin < 2; plugin++) {
            plugins[plugin] = dlopen(arguments[1 + plugin], RTLD_NOW);
            if (!plugins[plugin])
                abort();
            int (*function)(int) = (int (*)(int))dlsym(plugins[plugin], round == 2 ? "late" : "plug");
            printf("%d\n", function(round));
        }
        dlclose(plugins[round % 2]);
        dlclose(plugins[1 - round % 2]);
    }
    return dlopen("/no/such/plugin.so", RTLD_NOW) ? 1 : 6;
}
