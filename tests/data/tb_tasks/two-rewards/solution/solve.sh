#!/bin/sh
printf '%s\n' alpha beta gamma delta > greek
