# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
#
# Functions that the set-up scripts share. Sourced, never run.
#
# Packages are fetched with apt's own client and signature checks, but with a
# private state folder in govmm's cache and a generated sources file: the
# machine's apt configuration, package lists and installed packages stay as
# they are, and it works without root. Debian 12 (bookworm) is the source
# whatever the machine runs, so that every machine tests the same kernels.

SUITE=bookworm

# govmm's cache, as os.UserCacheDir in Go finds it.
CACHE=${GOVMM_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/govmm}
case $CACHE in
/*) ;;
*) CACHE=$PWD/$CACHE ;;
esac
APT_DIR=$CACHE/apt

say() { echo "govmm: $*" >&2; }

die() {
	say "$*"
	exit 1
}

# lock_cache NAME: one such script at a time; the lock ends with the process.
lock_cache() {
	mkdir -p "$CACHE"
	exec 9>"$CACHE/.lock-$1"
	flock -n 9 || {
		say "waiting for another $1 to finish"
		flock 9
	}
}

# repository SUFFIX: the base URI from which this machine's apt has its release
# ("") or its security updates ("-security"). --print-uris works without package
# lists and without root, and fetches nothing.
repository() {
	codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
	apt-get update --print-uris 2>/dev/null |
		sed -n "s,^'\(.*/\)dists/\($codename$1\|stable$1\)/InRelease' .*,\1,p" | head -n 1
}

# apt_private COMMAND ARGS...: apt with the private state. It takes no package
# for installed, or it would want to download the installed version.
apt_private() {
	command=$1
	shift
	"$command" -qq \
		-oDir::Etc::sourcelist="$APT_DIR/sources.list" \
		-oDir::Etc::sourceparts=/dev/null \
		-oDir::Etc::preferencesparts=/dev/null \
		-oDir::State::Lists="$APT_DIR/lists" \
		-oDir::State::status=/dev/null \
		-oDir::Cache="$APT_DIR/cache" \
		-oAPT::Architecture=amd64 -oAPT::Architectures=amd64 \
		-oAPT::Sandbox::User="$(id -un)" \
		-oAcquire::Languages=none -oAcquire::Retries=3 \
		"$@"
}

# apt_prepare: writes the sources file and fetches the package lists, once a run.
apt_prepare() {
	[ -z "${APT_READY:-}" ] || return 0
	main=$(repository "")
	[ -n "$main" ] || die "apt knows no Debian archive for this release: add it to /etc/apt/sources.list.d"
	for keyring in /usr/share/keyrings/debian-archive-keyring.pgp /usr/share/keyrings/debian-archive-keyring.gpg; do
		[ ! -r "$keyring" ] || break
	done
	[ -r "$keyring" ] || die "no Debian archive keyring: apt-get install debian-archive-keyring"
	mkdir -p "$APT_DIR/lists/partial" "$APT_DIR/cache/archives/partial"
	{
		for suite in "$SUITE" "$SUITE-updates" "$SUITE-backports"; do
			echo "deb [signed-by=$keyring] $main $suite main"
		done
		security=$(repository -security)
		[ -z "$security" ] || echo "deb [signed-by=$keyring] $security $SUITE-security main"
	} >"$APT_DIR/sources.list"
	apt_private apt-get update || die "apt-get update failed: is the Debian archive reachable?"
	APT_READY=yes
}

# unpack_packages DIR PACKAGE...: downloads the packages and unpacks them into
# DIR, which appears only when it is complete.
unpack_packages() {
	unpack_target=$1
	shift
	unpack_work=$unpack_target.tmp.$$
	rm -rf "$unpack_work"
	mkdir -p "$unpack_work/.debs"
	(cd "$unpack_work/.debs" && apt_private apt-get download "$@") || {
		rm -rf "$unpack_work"
		die "cannot download $*"
	}
	for unpack_deb in "$unpack_work"/.debs/*.deb; do
		dpkg -x "$unpack_deb" "$unpack_work" || {
			rm -rf "$unpack_work"
			die "cannot unpack $unpack_deb: is the disk full?"
		}
	done
	rm -rf "$unpack_work/.debs" "$unpack_target"
	mv "$unpack_work" "$unpack_target"
}
