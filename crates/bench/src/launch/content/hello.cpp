#include <algorithm>
#include <iostream>
#include <map>
#include <string>
#include <vector>

int main() {
    std::map<std::string, int> counts;
    for (const char *word : {"one", "two", "three", "two"}) ++counts[word];
    std::vector<std::string> words;
    for (const auto &[word, count] : counts) words.push_back(word + "=" + std::to_string(count));
    std::sort(words.begin(), words.end());
    for (const auto &word : words) std::cout << word << '\n';
}
