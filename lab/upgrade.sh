#!/bin/bash
# Upgrades a cluster from the release before to the commit that is checked out, goes back, and upgrades again, under traffic, with both
# as `make release` writes them:
#
#   lab/upgrade.sh [FROM]
#
# FROM is the commit of the release before; without it, it is the tag of that release, the second that CHANGELOG.md names. The cluster is
# that of `make cluster` and stays up.
set -euo pipefail
fail() { echo "upgrade: $*" >&2; exit 1; }
mapfile -t versions < <(sed -n 's/^## \(v[^ ]*\).*/\1/p' CHANGELOG.md)
[ ${#versions[@]} -ge 2 ] || fail "CHANGELOG.md names no release before"
from=${1:-${versions[1]}}
git rev-parse --quiet --verify "$from^{commit}" >/dev/null || fail "there is no $from here; give a commit of ${versions[1]}: make e2e-upgrade FROM=COMMIT"

# release COMMIT VERSION makes a release of a commit in a worktree of its own: nothing that is not committed is in it.
release() {
	tree=$(mktemp -d)
	trap 'git worktree remove --force "$tree"' EXIT
	echo "upgrade: $2 is commit $(git rev-parse --short "$1")"
	git worktree add --quiet --detach "$tree" "$1"
	make -C "$tree" build bin/helm
	(cd "$tree" && image/release.sh "$2" hairpin "$(go env GOHOSTARCH)")
	rm -rf "dist/hairpin-$2"
	mv "$tree/dist/hairpin-$2" dist/
	git worktree remove --force "$tree"
	trap - EXIT
}
release "$from" "${versions[1]}"
release HEAD "${versions[0]}"
bin/lab cluster up --release "dist/hairpin-${versions[1]}" --set "config.gateway.mode=${MODE:-shared}"
go test -tags e2e -timeout 20m -count 1 -v ./lab/e2e -run UpgradeFromRelease -args -release "dist/hairpin-${versions[0]}"
