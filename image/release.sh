#!/bin/bash
# Writes a release of the commit that is checked out to dist/hairpin-VERSION:
#
#   image/release.sh VERSION IMAGE [ARCHITECTURE…]
#
# VERSION is such as v0.2.0 and has a part in CHANGELOG.md; IMAGE is the images' repository, such as registry.example/net/hairpin.
# Without architectures, the release is for amd64 and arm64. URL in the environment is where its files will be, for krew.
set -euo pipefail
version=$1 image=$2
shift 2
[ $# -gt 0 ] || set -- amd64 arm64
fail() { echo "release: $*" >&2; exit 1; }
[[ $version =~ ^v(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)(-[0-9A-Za-z.-]+)?$ ]] || fail "VERSION=$version is none such as v0.2.0"
[ -z "$(git status --porcelain)" ] || fail "there are changes that are not committed: a release is of a commit"
changes=$(awk -v part="## $version" '/^## / { if (on) exit; on = $0 == part || index($0, part " ") == 1 } on' CHANGELOG.md)
[ -n "$changes" ] || fail "CHANGELOG.md has no part \"## $version\""

out=dist/hairpin-$version
rm -rf "$out" && mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
time="@$(git log -1 --format=%ct)" # of the commit, so that the same commit gives the same bytes
pack() { tar --sort=name --mtime="$time" --owner=0 --group=0 --numeric-owner --format=gnu -C "$1" -c "${@:3}" | gzip -n9 >"$2"; }

programs=()
for arch; do
	echo "release: programs for linux/$arch"
	mkdir "$work/$arch"
	GOARCH=$arch go build -ldflags "-s -w -X hairpin/report.release=$version -X hairpin/report.image=$image:$version" -o "$work/$arch/hairpin" ./cmd/hairpin
	GOARCH=$arch go build -C image/portmap -o "$work/$arch/portmap" github.com/containernetworking/plugins/plugins/meta/portmap
	ln -s hairpin "$work/$arch/kubectl-hairpin"
	pack "$work/$arch" "$out/hairpin-linux-$arch.tar.gz" hairpin kubectl-hairpin
	mkdir "$work/$arch/krew" # krew accepts no links
	cp "$work/$arch/hairpin" "$work/$arch/krew/kubectl-hairpin"
	cp LICENSE "$work/$arch/krew"
	pack "$work/$arch/krew" "$out/kubectl-hairpin-linux-$arch.tar.gz" kubectl-hairpin LICENSE
	programs+=(--hairpin "$work/$arch/hairpin" --portmap "$work/$arch/portmap")
done

echo "release: images"
bin/lab image --locked --oci "$out/hairpin-images.tar" --name "$image:$version" "${programs[@]}" | tee "$work/images"
ovs=$(sed -n 's/.* has the images .*-ovs:\([^ ]*\)$/\1/p' "$work/images")
[ -n "$ovs" ] || fail "the tag of Open vSwitch's image is not known"

# The chart names the images of this release, so that its users need no values for that.
cp -r charts/hairpin "$work/hairpin"
sed -i "0,/^  repository: \"\"$/s||  repository: $image|; 0,/^    tag: \"\"$/s||    tag: \"$ovs\"|" "$work/hairpin/values.yaml"
grep -qx "  repository: $image" "$work/hairpin/values.yaml" && grep -qx "    tag: \"$ovs\"" "$work/hairpin/values.yaml" || fail "charts/hairpin/values.yaml has other lines than release.sh expects"
sed -i "s/^version: .*/version: ${version#v}/; s/^appVersion: .*/appVersion: $version/" "$work/hairpin/Chart.yaml"
# What Artifact Hub shows of it. The annotations are the last part of Chart.yaml.
platforms=$(printf ', linux/%s' "$@")
cat >>"$work/hairpin/Chart.yaml" <<END
  artifacthub.io/prerelease: "$([[ $version == *-* ]] && echo true || echo false)"
  artifacthub.io/images: |
    - {name: hairpin, image: "$image:$version", platforms: [${platforms#, }]}
    - {name: hairpin-ovs, image: "$image-ovs:$ovs", platforms: [${platforms#, }]}
END
pack "$work" "$out/hairpin-${version#v}.tgz" hairpin
bin/helm lint --strict --quiet "$out/hairpin-${version#v}.tgz" --set apiServer.host=api-server.invalid
bin/helm template hairpin "$out/hairpin-${version#v}.tgz" --include-crds --skip-tests --namespace hairpin --set namespace.create=true \
	--set apiServer.host=api-server.invalid >"$out/hairpin.yaml"

image/krew.sh "$version" "${URL:-https://release.invalid/$version}" "$out"/kubectl-hairpin-linux-*.tar.gz >"$out/krew.yaml"
echo "$changes" >"$out/CHANGELOG.md"
(cd "$out" && sha256sum -- * >SHA256SUMS)
echo "release: $out"
(cd "$out" && ls -l)
