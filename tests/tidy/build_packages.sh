#!/bin/sh
# What deploy/setup installs for building is enough to configure, without what only tests need.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/pkg-config" <<'END'
#!/bin/sh
case "$*" in
*cmocka*) exit 1 ;;
esac
exec pkg-config "$@"
END
chmod +x "$folder/pkg-config"
cmake -S "$DP_SOURCE" -B "$folder/build" -G Ninja -DPKG_CONFIG_EXECUTABLE="$folder/pkg-config" \
    >"$folder/log" 2>&1 || { cat "$folder/log"; exit 1; }
grep -q "no tests: cmocka is not here" "$folder/log"
ninja -C "$folder/build" -t targets all | grep -q "^bin/dpctl:"
if ninja -C "$folder/build" -t targets all | grep -q "^bin/test_"; then
    echo "tests are built without cmocka"
    exit 1
fi
