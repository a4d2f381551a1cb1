#!/usr/bin/env bash
# Writes what a version is installed from: bash deploy/release.sh PART FOLDER
#
#   wheel   the wheel, with the kernels of each machine that a compiler is here for
#   chart   the chart, with the files that it links to
#   notes   the version's section of CHANGELOG.md
#   sbom    what is installed beside the interpreter, as CycloneDX
#   image   the CPU image as an archive of `docker save`, its SBOM, and the licences of what it holds
#   sums    SHA256SUMS of the folder; with KEY, a private key in PEM, its signature too
#   all     all of them: `make release`, which installs the tools (deploy/requirements.txt) first
#
# PYTHON has headroom and its packages (default: .venv's), TOOLS is the folder of the tools' programs.
set -euo pipefail
cd "$(dirname "$0")/.."
part=${1:?PART is missing}
folder=${2:?FOLDER is missing}
python=${PYTHON:-.venv/bin/python}
tools=${TOOLS:-.venv-release/bin}
version=$("$python" src/headroom/version.py)

wheel() {
  "$python" - << 'END'
import sys
from headroom.models.ops.kernel_build import LEVELS, build_all

for level, failure in build_all(LEVELS).items():
    if failure:
        print(f"the wheel lacks the kernels for {level}: {failure}", file=sys.stderr)
END
  "$python" -m pip --disable-pip-version-check wheel --quiet --no-deps --wheel-dir "$folder" .
}

chart() {
  local semantic copy
  semantic=$(sed -E 's/\.dev([0-9]+)/-dev.\1/' <<< "$version") # as Helm takes versions
  copy=$(mktemp -d)
  cp -RL deploy/helm/headroom "$copy/"
  sed -i -E "s/^version: .*/version: $semantic/; s/^appVersion: .*/appVersion: $version/" "$copy/headroom/Chart.yaml"
  tar --owner 0 --group 0 -czf "$folder/headroom-$semantic.tgz" -C "$copy" headroom
  rm -r "$copy"
}

notes() {
  local heading=${version%%+*} file="$folder/headroom-$version-notes.md"
  if [[ $version == *.dev* ]]; then heading=Unreleased; fi
  awk -v heading="## $heading " '/^## / { shown = index($0 " ", heading) == 1 } shown' CHANGELOG.md > "$file"
  if [ ! -s "$file" ]; then
    echo "CHANGELOG.md has no section $heading" >&2
    return 1
  fi
}

sbom() {
  "$tools/cyclonedx-py" environment --pyproject pyproject.toml --output-reproducible --no-validate \
    --output-file "$folder/headroom-$version.cdx.json" "$python"
}

image() {
  local archive="$folder/headroom-$version-cpu"
  "$python" -m deploy.image "$archive.tar" "$archive-third-party.txt"
  SYFT_CHECK_FOR_APP_UPDATE=false "$tools/syft" scan "docker-archive:$archive.tar" --source-name headroom \
    --source-version "$version" --quiet --output "cyclonedx-json=$archive.cdx.json"
  gzip -1 "$archive.tar"
}

sums() {
  (cd "$folder" && rm -f SHA256SUMS* && sha256sum -- * > SHA256SUMS)
  if [ -n "${KEY:-}" ]; then
    openssl dgst -sha256 -sign "$KEY" ${SIGNING_PASSWORD:+-passin env:SIGNING_PASSWORD} \
      -out "$folder/SHA256SUMS.sig" "$folder/SHA256SUMS"
  fi
}

# What is signed is a release; the key is tried before the long part.
check_signable() {
  if [[ $version == *.dev* || $version == *dirty* ]]; then
    echo "KEY: $version is no release: commit, and tag the commit first (git tag --annotate vX.Y.Z)" >&2
    return 1
  fi
  openssl pkey -in "$KEY" ${SIGNING_PASSWORD:+-passin env:SIGNING_PASSWORD} -noout
}

all() {
  if [ -n "${KEY:-}" ]; then check_signable; fi
  rm -rf "$folder"
  mkdir "$folder"
  notes
  sbom
  wheel
  chart
  image
  if [ "$("$python" src/headroom/version.py)" != "$version" ]; then
    echo "$folder is no $version: something in the tree changed since the build began" >&2
    return 1
  fi
  sums
  ls -l --block-size=MB "$folder"
}

case $part in
  wheel | chart | notes | sbom | image | sums | all) "$part" ;;
  *)
    sed -n '2,/^[^#]/s/^# \?//p' "$0" >&2
    exit 2
    ;;
esac
