# SPDX-License-Identifier: Apache-2.0
#
# Everything that a newcomer or CI does is a target here. The scripts behind
# them install or download what is missing, and only that.

SHELL        := /bin/sh
GO           ?= go
STATICCHECK  := honnef.co/go/tools/cmd/staticcheck@v0.8.1
FUZZTIME     ?= 20s
export CGO_ENABLED = 0
# The guest image, kernels and the emulated host are found here.
export GOVMM_CACHE ?= $(if $(XDG_CACHE_HOME),$(XDG_CACHE_HOME),$(HOME)/.cache)/govmm

.PHONY: help
help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /  \1\t/p' $(MAKEFILE_LIST) | expand -t 14

.PHONY: run
run: build images kernels ## boot a stock Debian kernel to a prompt, with a NIC
	@scripts/run $(ARGS)

.PHONY: build
build: ## build bin/govmm and bin/emuhost
	$(GO) build -trimpath -o bin/ ./cmd/govmm ./scripts/emuhost

.PHONY: test
test: lint unit cross images kernels guest-test fuzz ## run all tests

.PHONY: unit
unit: setup kernels ## run the tests that need no guest, with the race detector
	CGO_ENABLED=1 $(GO) test -race -timeout 15m $$($(GO) list ./... | grep -v /tests/)
	cd guest-images/uroot && $(GO) vet ./... && $(GO) test ./...

.PHONY: guest-test
guest-test: build images kernels ## run the tests that boot stock kernels
	$(GO) test -count=1 -timeout 40m ./tests/...

.PHONY: fuzz
fuzz: ## run each fuzz target for FUZZTIME
	@scripts/fuzz $(FUZZTIME)

.PHONY: cross
cross: ## build for linux/ppc64le
	GOARCH=ppc64le $(GO) build ./...
	GOARCH=ppc64le $(GO) vet ./...

.PHONY: lint
lint: ## gofmt, go vet, staticcheck
	@unformatted=$$(gofmt -l .); test -z "$$unformatted" || { echo "gofmt would change:" $$unformatted; exit 1; }
	$(GO) vet ./...
	$(GO) run $(STATICCHECK) ./...

.PHONY: bench
bench: setup ## measure the packet engine against the raw tap loop
	@scripts/bench

.PHONY: setup
setup:
	@scripts/setup

.PHONY: kernels
kernels: setup
	@scripts/fetch-kernels

.PHONY: images
images: setup ## build the guest image
	@guest-images/build

.PHONY: clean
clean: ## remove what was built here; the cache stays
	rm -rf bin build
