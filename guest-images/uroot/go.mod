module github.com/govmm/govmm/guest-images/uroot

go 1.26.0

tool (
	github.com/u-root/u-root
	github.com/u-root/u-root/cmds/core/basename
	github.com/u-root/u-root/cmds/core/cat
	github.com/u-root/u-root/cmds/core/chmod
	github.com/u-root/u-root/cmds/core/chroot
	github.com/u-root/u-root/cmds/core/cmp
	github.com/u-root/u-root/cmds/core/comm
	github.com/u-root/u-root/cmds/core/cp
	github.com/u-root/u-root/cmds/core/date
	github.com/u-root/u-root/cmds/core/dd
	github.com/u-root/u-root/cmds/core/df
	github.com/u-root/u-root/cmds/core/dhclient
	github.com/u-root/u-root/cmds/core/dirname
	github.com/u-root/u-root/cmds/core/dmesg
	github.com/u-root/u-root/cmds/core/du
	github.com/u-root/u-root/cmds/core/echo
	github.com/u-root/u-root/cmds/core/false
	github.com/u-root/u-root/cmds/core/find
	github.com/u-root/u-root/cmds/core/free
	github.com/u-root/u-root/cmds/core/grep
	github.com/u-root/u-root/cmds/core/gzip
	github.com/u-root/u-root/cmds/core/head
	github.com/u-root/u-root/cmds/core/hexdump
	github.com/u-root/u-root/cmds/core/hostname
	github.com/u-root/u-root/cmds/core/id
	github.com/u-root/u-root/cmds/core/insmod
	github.com/u-root/u-root/cmds/core/io
	github.com/u-root/u-root/cmds/core/ip
	github.com/u-root/u-root/cmds/core/kill
	github.com/u-root/u-root/cmds/core/ln
	github.com/u-root/u-root/cmds/core/ls
	github.com/u-root/u-root/cmds/core/lsmod
	github.com/u-root/u-root/cmds/core/md5sum
	github.com/u-root/u-root/cmds/core/mkdir
	github.com/u-root/u-root/cmds/core/mkfifo
	github.com/u-root/u-root/cmds/core/mknod
	github.com/u-root/u-root/cmds/core/mktemp
	github.com/u-root/u-root/cmds/core/more
	github.com/u-root/u-root/cmds/core/mount
	github.com/u-root/u-root/cmds/core/msr
	github.com/u-root/u-root/cmds/core/mv
	github.com/u-root/u-root/cmds/core/netcat
	github.com/u-root/u-root/cmds/core/netstat
	github.com/u-root/u-root/cmds/core/nohup
	github.com/u-root/u-root/cmds/core/pidof
	github.com/u-root/u-root/cmds/core/poweroff
	github.com/u-root/u-root/cmds/core/printenv
	github.com/u-root/u-root/cmds/core/ps
	github.com/u-root/u-root/cmds/core/pwd
	github.com/u-root/u-root/cmds/core/readlink
	github.com/u-root/u-root/cmds/core/realpath
	github.com/u-root/u-root/cmds/core/rm
	github.com/u-root/u-root/cmds/core/rmmod
	github.com/u-root/u-root/cmds/core/seq
	github.com/u-root/u-root/cmds/core/shasum
	github.com/u-root/u-root/cmds/core/shutdown
	github.com/u-root/u-root/cmds/core/sleep
	github.com/u-root/u-root/cmds/core/sort
	github.com/u-root/u-root/cmds/core/strings
	github.com/u-root/u-root/cmds/core/stty
	github.com/u-root/u-root/cmds/core/sync
	github.com/u-root/u-root/cmds/core/tail
	github.com/u-root/u-root/cmds/core/tar
	github.com/u-root/u-root/cmds/core/tee
	github.com/u-root/u-root/cmds/core/time
	github.com/u-root/u-root/cmds/core/timeout
	github.com/u-root/u-root/cmds/core/touch
	github.com/u-root/u-root/cmds/core/tr
	github.com/u-root/u-root/cmds/core/true
	github.com/u-root/u-root/cmds/core/truncate
	github.com/u-root/u-root/cmds/core/tty
	github.com/u-root/u-root/cmds/core/umount
	github.com/u-root/u-root/cmds/core/uname
	github.com/u-root/u-root/cmds/core/uniq
	github.com/u-root/u-root/cmds/core/unshare
	github.com/u-root/u-root/cmds/core/uptime
	github.com/u-root/u-root/cmds/core/wc
	github.com/u-root/u-root/cmds/core/which
	github.com/u-root/u-root/cmds/core/xargs
	github.com/u-root/u-root/cmds/core/yes
)

require (
	github.com/ProtonMail/go-crypto v0.0.0-20221026131551-cf6655e29de4 // indirect
	github.com/atotto/clipboard v0.1.4 // indirect
	github.com/aymanbagabas/go-osc52/v2 v2.0.1 // indirect
	github.com/beevik/ntp v0.3.0 // indirect
	github.com/cenkalti/backoff/v4 v4.1.3 // indirect
	github.com/charmbracelet/bubbles v0.15.1-0.20230123181021-a6a12c4a31eb // indirect
	github.com/charmbracelet/bubbletea v0.24.1 // indirect
	github.com/charmbracelet/lipgloss v0.7.1 // indirect
	github.com/cloudflare/circl v1.6.3 // indirect
	github.com/containerd/console v1.0.4-0.20230706203907-8f6c4e4faef5 // indirect
	github.com/dustin/go-humanize v1.0.1 // indirect
	github.com/google/go-tpm v0.9.2-0.20240919181259-d96ccf715685 // indirect
	github.com/google/uuid v1.6.0 // indirect
	github.com/hugelgupf/go-shlex v0.0.0-20200702092117-c80c9d0918fa // indirect
	github.com/hugelgupf/vmtest v0.0.0-20240307030256-5d9f3d34a58d // indirect
	github.com/insomniacslk/dhcp v0.0.0-20231206064809-8c70d406f6d2 // indirect
	github.com/ishidawataru/sctp v0.0.0-20230406120618-7ff4192f6ff2 // indirect
	github.com/josharian/native v1.1.0 // indirect
	github.com/klauspost/compress v1.18.0 // indirect
	github.com/klauspost/pgzip v1.2.6 // indirect
	github.com/knz/bubbline v0.0.0-20230717192058-486954f9953f // indirect
	github.com/kr/fs v0.1.0 // indirect
	github.com/lucasb-eyer/go-colorful v1.2.0 // indirect
	github.com/mattn/go-isatty v0.0.20 // indirect
	github.com/mattn/go-localereader v0.0.1 // indirect
	github.com/mattn/go-runewidth v0.0.14 // indirect
	github.com/mdlayher/packet v1.1.2 // indirect
	github.com/mdlayher/socket v0.5.1 // indirect
	github.com/mdlayher/vsock v1.2.1 // indirect
	github.com/muesli/ansi v0.0.0-20230316100256-276c6243b2f6 // indirect
	github.com/muesli/cancelreader v0.2.2 // indirect
	github.com/muesli/reflow v0.3.0 // indirect
	github.com/muesli/termenv v0.15.1 // indirect
	github.com/peterh/liner v1.2.2 // indirect
	github.com/pierrec/lz4/v4 v4.1.22 // indirect
	github.com/pkg/sftp v1.13.9 // indirect
	github.com/rck/unit v0.0.3 // indirect
	github.com/rekby/gpt v0.0.0-20200219180433-a930afbc6edc // indirect
	github.com/rivo/uniseg v0.4.4 // indirect
	github.com/sahilm/fuzzy v0.1.0 // indirect
	github.com/therootcompany/xz v1.0.1 // indirect
	github.com/tklauser/go-sysconf v0.3.14 // indirect
	github.com/tklauser/numcpus v0.8.0 // indirect
	github.com/u-root/cpuid v0.0.1-0.20250320140348-cc5fe81d966c // indirect
	github.com/u-root/gobusybox/src v0.0.0-20250101170133-2e884e4509c7 // indirect
	github.com/u-root/iscsinl v0.1.1-0.20210528121423-84c32645822a // indirect
	github.com/u-root/mkuimage v0.0.0-20250905073043-9a40452f5d3b // indirect
	github.com/u-root/u-root v0.16.0 // indirect
	github.com/u-root/uio v0.0.0-20240224005618-d2acac8f3701 // indirect
	github.com/ulikunitz/xz v0.5.15 // indirect
	github.com/vishvananda/netlink v1.3.0 // indirect
	github.com/vishvananda/netns v0.0.4 // indirect
	golang.org/x/crypto v0.45.0 // indirect
	golang.org/x/exp v0.0.0-20250305212735-054e65f0b394 // indirect
	golang.org/x/mod v0.29.0 // indirect
	golang.org/x/net v0.47.0 // indirect
	golang.org/x/sync v0.18.0 // indirect
	golang.org/x/sys v0.50.0 // indirect
	golang.org/x/term v0.48.0 // indirect
	golang.org/x/text v0.31.0 // indirect
	golang.org/x/tools v0.38.0 // indirect
	gopkg.in/yaml.v3 v3.0.1 // indirect
	mvdan.cc/sh/v3 v3.11.0 // indirect
	pack.ag/tftp v1.0.1-0.20181129014014-07909dfbde3c // indirect
)
