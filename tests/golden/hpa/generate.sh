#!/bin/sh
# Writes vectors-<version>.json by running the HorizontalPodAutoscaler's own code.
#
#   tests/golden/hpa/generate.sh 1.34.2 [go]
#
# LIBRARIES=1.34.2 compiles the package of another version against the libraries of this one, where the proxy no longer has all
# staging modules of the other. The arithmetic is in the package, and in metrics/utilization.go, which has not changed in between.
#
# The module k8s.io/kubernetes comes through the Go module proxy, and so do its staging modules: 0.34.2 beside 1.34.2. The
# package podautoscaler is copied into a scratch module beside golden.go, because what is to be measured is not exported.
set -eu
version=$1
go=${2:-go}
here=$(cd "$(dirname "$0")" && pwd)
minor=$(echo "$version" | cut -d. -f2)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
printf 'module golden\n\ngo 1.24\n' >go.mod
folder() { "$go" mod download -json "k8s.io/kubernetes@v$1" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p'; }
libraries=${LIBRARIES:-$version}
package=$(folder "$version")/pkg/controller/podautoscaler
source=$(folder "$libraries")
{
    printf 'module golden\n\n'
    grep -E '^(go|godebug) ' "$source/go.mod"
    printf '\nrequire k8s.io/kubernetes v%s\n\n' "$libraries"
    sed -n "s#^\t\(k8s.io/[a-z-]*\) => ./staging.*#replace \1 => \1 v0.${libraries#1.}#p" "$source/go.mod"
    sed -n '/^require (/,/^)/p' "$source/go.mod"
} >go.mod
cp "$source/go.sum" .
mkdir podautoscaler
for file in horizontal replica_calculator rate_limiters; do
    cp "$package/$file.go" podautoscaler/
done
cp "$here/golden.go" podautoscaler/
if [ "$minor" -ge 33 ]; then cp "$here/since_1_33.go" podautoscaler/; else cp "$here/until_1_32.go" podautoscaler/; fi
cp "$here/main.go" .
chmod -R u+w podautoscaler
"$go" run -mod=mod . "$version" >vectors.json
mv vectors.json "$here/vectors-$version.json"
