// tomlplusplus behind dp/toml.h: the one place that includes it.

#include <algorithm>
#include <cstring>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <toml++/toml.h>

extern "C" {
#include "dp/alloc.h"
#include "dp/toml.h"
}

struct dp_toml {
    toml::table table;
    struct dp_toml_node root;
    std::vector<std::unique_ptr<std::vector<dp_toml_node>>> arrays;
    std::vector<std::unique_ptr<std::string>> strings;
};

namespace
{

const char *keep(dp_toml &toml, std::string text)
{
    toml.strings.push_back(std::make_unique<std::string>(std::move(text)));
    return toml.strings.back()->c_str();
}

void convert(dp_toml &toml, const toml::node &from, dp_toml_node &to);

void take_children(dp_toml &toml, std::unique_ptr<std::vector<dp_toml_node>> children,
                   dp_toml_node &to)
{
    std::stable_sort(children->begin(), children->end(),
                     [](const dp_toml_node &a, const dp_toml_node &b) {
                         return a.line != b.line ? a.line < b.line : a.column < b.column;
                     });
    to.children = children->data();
    to.children_count = children->size();
    toml.arrays.push_back(std::move(children));
}

void convert_table(dp_toml &toml, const toml::table &from, dp_toml_node &to)
{
    auto children = std::make_unique<std::vector<dp_toml_node>>();
    for (const auto &[key, value] : from) {
        dp_toml_node child{};
        child.key = keep(toml, std::string(key.str()));
        child.key_line = static_cast<int>(key.source().begin.line);
        child.key_column = static_cast<int>(key.source().begin.column);
        convert(toml, value, child);
        children->push_back(child);
    }
    to.type = DP_TOML_TABLE;
    take_children(toml, std::move(children), to);
}

void convert_scalar(dp_toml &toml, const toml::node &from, dp_toml_node &to)
{
    if (const auto *text = from.as_string()) {
        to.type = DP_TOML_STRING;
        to.value.string = keep(toml, text->get());
        to.string_length = text->get().size();
    } else if (const auto *integer = from.as_integer()) {
        to.type = DP_TOML_INTEGER;
        to.value.integer = integer->get();
    } else if (const auto *number = from.as_floating_point()) {
        to.type = DP_TOML_FLOAT;
        to.value.number = number->get();
    } else if (const auto *boolean = from.as_boolean()) {
        to.type = DP_TOML_BOOLEAN;
        to.value.boolean = boolean->get();
    } else {
        std::ostringstream text;
        from.visit([&text](const auto &value) {
            if constexpr (toml::is_date<decltype(value)> || toml::is_time<decltype(value)> ||
                          toml::is_date_time<decltype(value)>) {
                text << value.get();
            }
        });
        to.type = DP_TOML_DATETIME;
        to.value.string = keep(toml, text.str());
        to.string_length = std::strlen(to.value.string);
    }
}

void convert(dp_toml &toml, const toml::node &from, dp_toml_node &to)
{
    to.line = static_cast<int>(from.source().begin.line);
    to.column = static_cast<int>(from.source().begin.column);
    if (const auto *table = from.as_table()) {
        convert_table(toml, *table, to);
    } else if (const auto *array = from.as_array()) {
        auto children = std::make_unique<std::vector<dp_toml_node>>();
        for (const auto &value : *array) {
            dp_toml_node child{};
            convert(toml, value, child);
            children->push_back(child);
        }
        to.type = DP_TOML_ARRAY;
        take_children(toml, std::move(children), to);
    } else {
        convert_scalar(toml, from, to);
    }
}

// Brackets outside strings and comments, so that a bomb of "[[[[..." never reaches the parser.
// Dotted keys nest as well and are counted per line.
bool too_deep(const char *text, size_t length)
{
    int depth = 0, dots = 0;
    char quote = 0;
    bool comment = false;
    for (size_t i = 0; i < length; i++) {
        char c = text[i];
        if (c == '\n') {
            comment = false;
            quote = 0;
            dots = 0;
        } else if (comment) {
            continue;
        } else if (quote != 0) {
            if (c == '\\' && quote == '"') {
                i++;
            } else if (c == quote) {
                quote = 0;
            }
        } else if (c == '"' || c == '\'') {
            quote = c;
        } else if (c == '#') {
            comment = true;
        } else if (c == '[' || c == '{') {
            depth++;
        } else if (c == ']' || c == '}') {
            depth -= depth > 0;
        } else if (c == '.') {
            dots++;
        }
        if (depth > DP_SPEC_DEPTH_MAX || dots > DP_SPEC_DEPTH_MAX) {
            return true;
        }
    }
    return false;
}

} // namespace

extern "C" dp_status dp_toml_parse(const char *text, size_t length, struct dp_diags *diags,
                                   struct dp_toml **ret_toml, struct dp_error *err)
{
    if (length > DP_SPEC_BYTES_MAX) {
        return dp_fail(err, DP_TOO_LARGE, "%s has %zu bytes; the limit for a spec is %u",
                       diags->file, length, DP_SPEC_BYTES_MAX);
    }
    if (too_deep(text, length)) {
        dp_diags_add(diags, 0, 0, nullptr, "nested deeper than %d levels", DP_SPEC_DEPTH_MAX);
        return dp_diags_status(diags, err);
    }
    auto toml = std::make_unique<dp_toml>();
    try {
        toml->table = toml::parse(std::string_view(text, length));
    } catch (const toml::parse_error &error) {
        dp_diags_add(diags, static_cast<int>(error.source().begin.line),
                     static_cast<int>(error.source().begin.column), nullptr, "%s",
                     std::string(error.description()).c_str());
        return dp_diags_status(diags, err);
    }
    toml->root = dp_toml_node{};
    convert_table(*toml, toml->table, toml->root);
    *ret_toml = toml.release();
    return DP_OK;
}

extern "C" void dp_toml_free(struct dp_toml *toml)
{
    delete toml;
}

extern "C" const struct dp_toml_node *dp_toml_root(const struct dp_toml *toml)
{
    return &toml->root;
}

extern "C" const struct dp_toml_node *dp_toml_get(const struct dp_toml_node *table, const char *key)
{
    for (size_t i = 0; i < table->children_count; i++) {
        if (table->children[i].key != nullptr && std::strcmp(table->children[i].key, key) == 0) {
            return &table->children[i];
        }
    }
    return nullptr;
}

extern "C" const char *dp_toml_type_text(dp_toml_type type)
{
    static const char *const texts[] = {"a table",  "an array",  "a string", "an integer",
                                        "a number", "a boolean", "a date"};
    return texts[type];
}
