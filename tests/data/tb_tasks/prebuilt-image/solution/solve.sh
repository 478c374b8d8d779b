#!/bin/sh
wc -l < /etc/passwd > lines
